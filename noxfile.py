"""All that CONTRIBUTING.md says of versions: nox, or nox -s layers-3.9; needs those interpreters.

TORCH_FLAGS as for make, such as an index of PyTorch's CPU builds: the default on Linux is a build
for CUDA.
"""

import os
import shlex

import nox

nox.options.sessions = ["tests", "layers"]
nox.options.error_on_missing_interpreters = False

TORCH_FLAGS = shlex.split(os.environ.get("TORCH_FLAGS", ""))
LAYERS = [
    f"tests/test_{name}.py"
    for name in (
        "rotation", "cells", "units_gated", "units_memory", "units_unitary", "dispatch",
        "rum_kernels", "probe", "sentence_attention",
    )
]  # fmt: skip
"""The tests of what works without fairseq."""


@nox.session(python=["3.11", "3.12"])
def tests(session: nox.Session) -> None:
    """All tests, with the versions of requirements/."""
    session.install("--require-hashes", "--no-deps", "-r", "requirements/lock.txt")
    session.install(*TORCH_FLAGS, "-r", "requirements/torch.txt")
    session.install("--no-build-isolation", "--no-deps", "-e", ".")
    session.run("pytest", "-q", *session.posargs)


@nox.session(python=["3.9", "3.10", "3.11", "3.12", "3.13"])
@nox.parametrize("torch", ["newest", "oldest"])
def layers(session: nox.Session, torch: str) -> None:
    """The layers in a program without fairseq, with the newest torch and the oldest one allowed."""
    wanted = ["torch>=2.1,<3"]
    if torch == "oldest":
        if session.python not in ("3.9", "3.10", "3.11"):
            session.skip("torch 2.1 has no wheels for this Python")
        wanted = ["torch==2.1.*", "numpy<2"]
    session.install(*TORCH_FLAGS, *wanted)
    session.install("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "setuptools", "wheel")
    _run_layers(session)


@nox.session(venv_params=["--system-site-packages"])
def installed(session: nox.Session) -> None:
    """The layers with torch and pytest of the Python that runs nox: a distribution's, say."""
    _run_layers(session, "--no-deps")


def _run_layers(session: nox.Session, *install: str) -> None:
    session.env["FAIRSEQ_RUM_NO_EXT"] = "1"
    session.install("--no-build-isolation", *install, ".")
    session.run(
        "python", "-c", "import sys, fairseq_rum.layers; assert 'fairseq' not in sys.modules"
    )
    session.run("python", "-m", "pytest", "-q", *LAYERS, *session.posargs)
