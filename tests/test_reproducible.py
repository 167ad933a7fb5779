"""The same seed gives the same parameters, whatever loads the data and however many threads."""

import pytest
import torch
from conftest import run_fairseq
from test_kill_resume import MODELS, babi_data, commands, summary_data  # noqa: F401
from test_language_model import parameters as saved


@pytest.fixture(scope="module")
def trained(commands, tmp_path_factory):  # noqa: F811
    """Model, options and threads -> parameters after training; trained when asked for."""
    known = {}

    def parameters(name, *options, threads=1):
        key = name, options, threads
        if key not in known:
            folder = tmp_path_factory.mktemp(name)
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            try:
                run_fairseq("train", *commands[name], *options, "--save-dir", folder)
            finally:
                torch.set_num_threads(before)
            known[key] = saved(folder / "checkpoint_last.pt")
        return known[key]

    return parameters


def check_equal(found, expected):
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def models(quick):
    """All models, of which ``make test`` takes some."""
    return [pytest.param(name, marks=[] if name in quick else pytest.mark.soak) for name in MODELS]


@pytest.mark.parametrize("name", models(["rum_lm", "babi_qa"]))
def test_workers_change_nothing(trained, name):
    """Order of batches, dropout, zoneout: bit for bit the same with 0, 1 and 4 workers."""
    expected = trained(name)
    for workers in (1, 4):
        check_equal(trained(name, "--num-workers", workers), expected)


# Layer normalization of small values along a window multiplies a rounding error by up to 1e14 in
# 400 steps (tests/test_fs_rum.py), and Adam keeps its sign alone: a step of plain descent instead.
ROUNDING = {"fs_rum": ["--optimizer", "sgd", "--lr", 1, "--clip-norm", 0, "--max-update", 1]}


@pytest.mark.parametrize("name", models(["copying"]))
def test_threads_change_rounding_alone(trained, name):
    """Two threads twice are the same bit for bit; one and two differ by float32 rounding.

    Sums over the batch (gradients of gains and biases, products of larger matrices) are cut into
    as many pieces as there are threads. Twelve updates of Adam let that grow.
    """
    options = ROUNDING.get(name, [])
    expected = trained(name, *options, threads=2)
    check_equal(trained(name, *options, "--log-interval", 7, threads=2), expected)
    alone = trained(name, *options)
    for key in expected:
        assert torch.allclose(alone[key], expected[key], rtol=1e-3, atol=1e-4), key


@pytest.mark.soak
@pytest.mark.parametrize("name", MODELS)
def test_another_seed_is_another_run(trained, name):
    found, expected = trained(name, "--seed", 6), trained(name)
    assert any(not torch.equal(found[key], expected[key]) for key in expected)
