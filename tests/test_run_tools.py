"""Which commit a record of a run names."""

import subprocess
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "examples"))
import run_tools  # noqa: E402, found by the line above

CODE, RESULTS, README, FIGURE = (
    "examples/task/run.py", "examples/task/results/one/run.json", "examples/task/README.md",
    "examples/task/bars.png",
)  # fmt: skip


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with one commit; its folder and the short name of the commit."""

    def git(*arguments):
        identity = ["-c", "user.name=n", "-c", "user.email=e"]
        return subprocess.run(
            ["git", "-C", tmp_path, *identity, *arguments],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    for name in (CODE, RESULTS, README, FIGURE, "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("before\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "all")
    monkeypatch.setattr(run_tools, "ROOT", tmp_path)
    return tmp_path, git("rev-parse", "--short", "HEAD")


@pytest.mark.parametrize(
    "name, mark",
    [("", ""), (RESULTS, ""), (README, ""), (FIGURE, ""), (CODE, "+"), ("README.md", "+")],
)
def test_changed_code_has_a_mark_and_changed_results_have_none(repository, name, mark):
    folder, head = repository
    if name:
        (folder / name).write_text("after\n")
    assert run_tools.commit() == head + mark


def test_deleted_results_have_no_mark(repository):
    folder, head = repository
    (folder / RESULTS).unlink()
    assert run_tools.commit() == head


def test_no_repository_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(run_tools, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert run_tools.commit() == ""
