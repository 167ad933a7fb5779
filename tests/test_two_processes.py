"""Two data-parallel processes on the CPU own their streams, and together are one big batch."""

import os
import subprocess
import sys

import pytest
import torch
from conftest import ROOT
from test_language_model import parameters, train, train_arguments

SHARDED = [
    "--distributed-world-size", 2, "--distributed-init-method", "env://",
    "--distributed-no-spawn", "--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp",
    "--load-checkpoint-on-all-dp-ranks",
]  # fmt: skip
PROGRAM = """
import os, sys
sys.argv[0] = "fairseq-train"
sys.argv += ["--distributed-rank", os.environ["RANK"]]
from fairseq_cli.train import cli_main
cli_main()
"""


def train_in_two(data, save_dir, *extra):
    arguments = [str(x) for x in train_arguments(data, save_dir, *SHARDED, *extra)]
    script = save_dir.parent / "train.py"
    script.write_text(PROGRAM)
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
         str(script), *arguments],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return save_dir / "checkpoint_last.pt"


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch without gloo")
def test_two_processes_are_one_of_twice_the_batch(char_data, tmp_path):
    one = train(char_data, tmp_path / "one", "--max-update", 6)
    two = train_in_two(char_data, tmp_path / "two", "--max-update", 4, "--batch-size", 2)
    states = torch.load(two, weights_only=True)["extra_state"]["StatefulLanguageModelingTask"]
    assert states["layout"]["streams"] == 4 and states["states"][0][0].shape == (4, 16)
    two = train_in_two(char_data, tmp_path / "two", "--max-update", 6, "--batch-size", 2)
    expected, found = parameters(one), parameters(two)
    for name in expected:
        # The sums of the gradients differ in order: float32 rounding, grown over six Adam steps.
        assert torch.allclose(expected[name], found[name], rtol=1e-3, atol=1e-4), name
