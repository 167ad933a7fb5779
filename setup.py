"""Build and installation of fairseq_rum. fairseq itself comes with the extra ``fairseq``."""

import re
from pathlib import Path
from typing import List

from setuptools import Extension, find_packages, setup

HERE = Path(__file__).resolve().parent


def version() -> str:
    """The version, read from the one place that states it, without importing the package."""
    text = (HERE / "fairseq_rum" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if match is None:
        raise RuntimeError('fairseq_rum/__init__.py has no line __version__ = "..."')
    return match.group(1)


def readme() -> str:
    """The README, if there is one."""
    path = HERE / "README.md"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def extensions() -> List[Extension]:
    """Compiled parts. Each must be optional: the naive backend does without."""
    return []


# Three distributions provide the import package `fairseq` and overwrite each other's files, so none
# of them is a hard requirement: who has one keeps it. The extra names the one for each Python.
EXTRA_FAIRSEQ = [
    'fairseq==0.12.2; python_version < "3.11"',
    've-fairseq==0.12.3; python_version >= "3.11" and python_version < "3.13"',
    'fairseq-fixed==0.12.3.1; python_version >= "3.13"',
    'hydra-core>=1.3.2,<1.4; python_version >= "3.11"',
    'omegaconf>=2.3,<2.4; python_version >= "3.11"',
    "sentencepiece",
    "sacremoses",
    "rouge-score",
    "tensorboardX",
]

setup(
    name="fairseq-rum",
    version=version(),
    description="The Rotational Unit of Memory (RUM) for fairseq",
    long_description=readme(),
    long_description_content_type="text/markdown",
    author="fairseq_rum contributors",
    license="MIT",
    python_requires=">=3.9",
    packages=find_packages(include=["fairseq_rum*"]),
    ext_modules=extensions(),
    install_requires=["torch>=2.0,<3", "numpy", "tqdm"],
    extras_require={
        "fairseq": EXTRA_FAIRSEQ,
        "test": ["pytest", "pytest-timeout", "hypothesis", "ruff"],
        "plot": ["matplotlib"],
    },
    entry_points={"console_scripts": ["fairseq-rum = fairseq_rum.cli.main:main"]},
    zip_safe=False,
)
