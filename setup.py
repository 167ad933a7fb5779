"""Build and installation of fairseq_rum. fairseq itself comes with the extra ``fairseq``."""

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import List

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

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
    """The C++ loop of RUM, unless FAIRSEQ_RUM_NO_EXT=1. Optional: other backends do without."""
    if os.environ.get("FAIRSEQ_RUM_NO_EXT", "") not in ("", "0"):
        return []
    names = ("rum", "kernels_baseline", "kernels_avx2", "kernels_avx512")
    return [
        Extension(
            "fairseq_rum._C",
            sources=[f"csrc/{name}.cpp" for name in names],
            depends=["csrc/rum_loop.h", "csrc/rum_kernels.h"],
            language="c++",
            optional=True,
        )
    ]


class BuildExtension(build_ext):
    """Builds against the torch that is installed; says so and goes on where that does not work.

    The reason is kept in a file beside the extension's place, for ``fairseq-rum bench --backends``.
    """

    def run(self) -> None:
        """Build; a failure is a note, not an error."""
        in_place = self.inplace or getattr(self, "editable_mode", False)
        root = HERE if in_place else Path(self.build_lib)
        note = root / "fairseq_rum" / "_C.not_built.txt"
        self.failure = ""
        try:
            import torch.utils.cpp_extension  # noqa: F401
        except ImportError:
            self.failure = "there was no torch to build it with: use pip's --no-build-isolation"
        except Exception as error:  # a library of its that is missing, say
            self.failure = f"torch cannot be imported: {error}"
        else:
            super().run()
        if self.failure:
            # One of an earlier build would be of other sources, or for another torch.
            (root / self.get_ext_filename("fairseq_rum._C")).unlink(missing_ok=True)
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(self.failure + "\n", encoding="utf-8")
            print(f"fairseq_rum: no C++ backend, {self.failure}", file=sys.stderr)
        elif note.exists():
            note.unlink()

    def build_extension(self, ext: Extension) -> None:
        """Build, or note why not."""
        try:
            Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)
            self.compile_and_link(ext)
        except Exception as error:  # whatever a compiler, or having none, may raise
            text = (str(error).strip().splitlines() or [type(error).__name__])[0]
            if len(text) > 160:
                text = f"{text[:60]} ... {text[-80:]}"
            self.failure = f"the build failed: {text}"

    def compile_and_link(self, ext: Extension) -> None:
        """Compile the sources at the same time, as many as MAX_JOBS and the processors allow."""
        import torch
        from torch.utils import cpp_extension

        match = re.search(r"C\+\+ Version: (\d+)", torch.__config__.show())
        standard = "c++20" if match and int(match.group(1)) >= 202002 else "c++17"
        flags = [f"-std={standard}", "-O2", "-g0", "-fvisibility=hidden", "-fno-math-errno"]
        flags += ["-fno-trapping-math", "-ffp-contract=fast"]
        if sys.platform == "linux":
            # at::parallel_for is a header: without this flag it compiles to a loop in one thread.
            # Not for the linker: the symbols come with libtorch_cpu, whose thread pool is shared.
            flags.append("-fopenmp")
        abi = int(getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True))
        macros = [("TORCH_EXTENSION_NAME", "_C"), ("_GLIBCXX_USE_CXX11_ABI", str(abi))]
        include = cpp_extension.include_paths()

        def compile_one(source: str) -> List[str]:
            return self.compiler.compile(
                [source],
                output_dir=self.build_temp,
                macros=macros,
                include_dirs=include,
                extra_postargs=flags,
                depends=ext.depends,
            )

        jobs = int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)
        with ThreadPoolExecutor(max_workers=max(jobs, 1)) as pool:
            objects = [name for names in pool.map(compile_one, ext.sources) for name in names]
        self.compiler.link_shared_object(
            objects,
            self.get_ext_fullpath(ext.name),
            libraries=["c10", "torch", "torch_cpu", "torch_python"],
            library_dirs=cpp_extension.library_paths(),
            build_temp=self.build_temp,
            target_lang="c++",
        )


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
    cmdclass={"build_ext": BuildExtension},
    install_requires=["torch>=2.1,<3", "numpy", "tqdm"],
    extras_require={
        "fairseq": EXTRA_FAIRSEQ,
        "test": ["pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "ruff"],
        "plot": ["matplotlib"],
    },
    entry_points={"console_scripts": ["fairseq-rum = fairseq_rum.cli.main:main"]},
    zip_safe=False,
)
