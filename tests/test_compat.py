"""Version differences: messages about fairseq, checkpoints under weights_only, numpy's long."""

import argparse
import collections
import os
import pickle
import subprocess
import sys
import types
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from fairseq_rum import compat

# compat.py by its path: the package around it would import fairseq first.
LOAD_COMPAT = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("compat", {compat.__file__!r})
compat = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compat)
"""

restricted = pytest.mark.skipif(
    compat._torch_version() < (2, 6), reason="torch < 2.6 does not restrict loading by default"
)


def python(code, *args, **env):
    """Run code after LOAD_COMPAT in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", LOAD_COMPAT + code, *map(str, args)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )


# ---------------------------------------------------------------- checkpoints


class Payload:
    """Runs a shell command when it is unpickled without restriction."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def checkpoint():
    return {
        "args": argparse.Namespace(arch="rum_lm", lr=[1e-3]),
        "model": {"weight": torch.arange(6.0).view(2, 3)},
        "metrics": {
            "int64": np.int64(1),
            "int32": np.int32(2),
            "float32": np.float32(3.5),
            "float64": np.float64(4.5),
        },
        "arrays": [np.arange(3, dtype=t) for t in (np.int64, np.int32, np.float32, np.float64)],
        "dtype": np.dtype(np.float32),
    }


def rename_numpy(path, old, new):
    """Rewrite a checkpoint as another numpy would have written it."""
    with zipfile.ZipFile(path) as archive:
        records = [(info.filename, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in records:
            if name.endswith("data.pkl"):
                data = data.replace(
                    f"c{old}.multiarray\n".encode(), f"c{new}.multiarray\n".encode()
                )
            archive.writestr(name, data)


LOAD_CHECKPOINT = """
import torch
if sys.argv[2] == "allow":
    compat.allow_checkpoint_globals()
state = torch.load(sys.argv[1], weights_only=True)
assert state["args"].arch == "rum_lm" and state["args"].lr == [1e-3]
assert state["model"]["weight"].shape == (2, 3)
assert list(state["metrics"].values()) == [1, 2, 3.5, 4.5]
assert [type(v).__name__ for v in state["metrics"].values()] == list(state["metrics"])
assert [a.tolist() for a in state["arrays"]] == [[0, 1, 2]] * 4
assert state["dtype"] == "float32"
"""


@restricted
@pytest.mark.parametrize("name", ["numpy.core", "numpy._core"])
def test_checkpoint_with_namespace_and_numpy_loads(tmp_path, name):
    path = tmp_path / "checkpoint.pt"
    torch.save(checkpoint(), path)
    rename_numpy(path, "numpy._core", name)
    rename_numpy(path, "numpy.core", name)
    result = python(LOAD_CHECKPOINT, path, "allow")
    assert result.returncode == 0, result.stderr


@restricted
def test_checkpoint_needs_the_allowance(tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save(checkpoint(), path)
    result = python(LOAD_CHECKPOINT, path, "refuse")
    assert result.returncode != 0
    assert "Unsupported global: GLOBAL argparse.Namespace" in result.stderr


def test_payload_is_refused_and_does_not_run(tmp_path):
    path, marker = tmp_path / "checkpoint.pt", tmp_path / "ran"
    torch.save({**checkpoint(), "extra": Payload(f"touch {marker}")}, path)
    result = python(LOAD_CHECKPOINT, path, "allow")
    assert result.returncode != 0
    assert "UnpicklingError" in result.stderr
    assert not marker.exists()


@restricted
@pytest.mark.parametrize("value", [np.uint8(1), collections.deque([1]), Path("x")])
def test_what_is_not_listed_stays_refused(tmp_path, value):
    path = tmp_path / "checkpoint.pt"
    torch.save({"value": value}, path)
    compat.allow_checkpoint_globals()
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path)


def test_old_torch_is_left_alone(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    monkeypatch.setattr(
        torch.serialization, "add_safe_globals", lambda _: pytest.fail("called"), raising=False
    )
    compat.allow_checkpoint_globals()


# ----------------------------------------------------------------------- numpy


def test_numpy_long_is_restored_where_missing(monkeypatch):
    monkeypatch.delattr(np, "compat", raising=False)
    compat.restore_numpy_long()
    assert np.compat.long is int
    assert np.array([1, 2], dtype=np.compat.long).dtype.kind == "i"


def test_numpy_long_is_kept_where_present(monkeypatch):
    there = types.SimpleNamespace(long="theirs")
    monkeypatch.setattr(np, "compat", there, raising=False)
    compat.restore_numpy_long()
    assert np.compat is there
    assert there.long == "theirs"


def test_ended_aggregators_leave_no_name():
    from fairseq.logging import metrics

    compat.forget_ended_aggregators()
    counts = metrics._active_aggregators_cnt
    before = dict(counts)
    with metrics.aggregate("outer"):
        for new_root in (False, True):
            for _ in range(3):
                with metrics.aggregate(new_root=new_root) as inner:
                    metrics.log_scalar("loss", 2.0)
                    assert metrics.get_active_aggregators()[-1] is inner
                assert inner["loss"].avg == 2
                assert dict(counts) == {**before, "outer": 1}
        with metrics.aggregate("outer"):
            assert counts["outer"] == 2
        metrics.log_scalar("loss", 4.0)
    assert metrics._active_aggregators_cnt is counts and dict(counts) == before
    # The root of each new stack hid it from "outer" thrice.
    assert metrics.get_smoothed_value("outer", "loss") == pytest.approx(10 / 4, abs=0.01)
    compat.forget_ended_aggregators()
    assert metrics._active_aggregators_cnt is counts


def test_counts_of_an_unknown_kind_are_left_alone(monkeypatch):
    from fairseq.logging import metrics

    monkeypatch.setattr(metrics, "_active_aggregators_cnt", counts := collections.Counter())
    compat.forget_ended_aggregators()
    assert metrics._active_aggregators_cnt is counts
    monkeypatch.delattr(metrics, "_active_aggregators_cnt")
    compat.forget_ended_aggregators()
    assert not hasattr(metrics, "_active_aggregators_cnt")


def test_apply_does_all_and_returns_nothing():
    assert compat.apply() is None
    assert compat.apply() is None
    assert np.compat.long is int
    if compat._torch_version() >= (2, 6):
        assert argparse.Namespace in torch.serialization.get_safe_globals()


# --------------------------------------------------------------------- fairseq


REQUIRE = """
assert compat.fairseq_installed() is (sys.argv[1] == "installed")
try:
    compat.require_fairseq()
except ImportError as error:
    print(error)
"""


def fake_fairseq(folder, source):
    package = folder / "fairseq"
    package.mkdir()
    (package / "__init__.py").write_text(source)
    return str(folder)


def test_missing_fairseq_says_what_to_install():
    block = 'sys.modules["fairseq"] = None\n'  # what makes an import fail as if it were not there
    result = python(block + REQUIRE, "missing")
    assert result.returncode == 0, result.stderr
    assert result.stdout == 'fairseq is not installed: pip install "fairseq-rum[fairseq]"\n'


def test_folder_called_fairseq_is_not_fairseq(monkeypatch):
    namespace = types.ModuleType("fairseq")
    monkeypatch.setitem(sys.modules, "fairseq", namespace)
    assert not compat.fairseq_installed()
    with pytest.raises(ImportError, match="fairseq is not installed"):
        compat.require_fairseq()


def test_mutable_defaults_are_explained(tmp_path):
    source = """
from dataclasses import dataclass
@dataclass
class Config:
    common: list = []
"""
    result = python(REQUIRE, "installed", PYTHONPATH=fake_fairseq(tmp_path, source))
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") == 1
    assert "is installed but cannot be imported on Python" in result.stdout
    assert "ValueError: mutable default" in result.stdout
    assert "which Python >= 3.11 refuses" in result.stdout
    assert result.stdout.endswith('pip install "fairseq-rum[fairseq]"\n')


def test_missing_dependency_of_fairseq_is_named(tmp_path):
    result = python(
        REQUIRE, "installed", PYTHONPATH=fake_fairseq(tmp_path, "import no_such_package\n")
    )
    assert result.returncode == 0, result.stderr
    assert "ModuleNotFoundError: No module named 'no_such_package'" in result.stdout
    assert "mutable" not in result.stdout


@pytest.fixture
def imported_fairseq(monkeypatch):
    """A fairseq that is there already, so that only the check of its version is left."""
    module = types.ModuleType("fairseq")
    module.__file__ = "fairseq/__init__.py"
    monkeypatch.setitem(sys.modules, "fairseq", module)
    monkeypatch.setattr(compat, "_warned", False)
    return module


@pytest.mark.parametrize("known", compat.KNOWN_FAIRSEQ.items())
def test_known_fairseq_is_returned_quietly(imported_fairseq, monkeypatch, known):
    monkeypatch.setattr(compat, "installed_fairseq", lambda: [known])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compat.require_fairseq() is imported_fairseq


@pytest.mark.parametrize(
    "found, message",
    [
        ([("fairseq", "1.0.0")], "fairseq 1.0.0 was not tried"),
        ([], "a fairseq without package metadata was not tried"),
        (
            [("ve-fairseq", "0.12.3"), ("fairseq", "0.12.2")],
            "ve-fairseq 0.12.3, fairseq 0.12.2 overwrite each other's files",
        ),
    ],
)
def test_unknown_fairseq_warns_once(imported_fairseq, monkeypatch, found, message):
    monkeypatch.setattr(compat, "installed_fairseq", lambda: found)
    with pytest.warns(UserWarning, match=message) as caught:
        compat.require_fairseq()
    assert len(caught) == 1
    assert "ve-fairseq 0.12.3" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compat.require_fairseq()


def test_fairseq_of_this_environment_is_found():
    if not compat.fairseq_installed():
        pytest.skip("no fairseq here")
    assert compat.require_fairseq() is sys.modules["fairseq"]


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_known_to_torch_before_2_4_too(monkeypatch, dtype, is_old):
    def found(kind):
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            if is_old:
                patch.delattr(torch, "get_autocast_dtype", raising=False)
            return compat.autocast_dtype(torch.device(kind))

    assert found("cpu") is found("cuda") is found("meta") is None
    with torch.autocast("cpu", dtype):
        assert found("cpu") == dtype and found("cuda") is found("meta") is None
        with torch.autocast("cpu", enabled=False):
            assert found("cpu") is None
