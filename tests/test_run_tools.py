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


def test_a_record_that_is_none_is_named(tmp_path):
    assert run_tools.load(tmp_path / "run.json") == {}
    (tmp_path / "run.json").write_text("")
    with pytest.raises(ValueError, match="run.json: no record of a run"):
        run_tools.load(tmp_path / "run.json")


def test_writing_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "new" / "run.json"
    run_tools.write(path, "one")

    def stopped(self, *_, **__):
        open(self, "w").close()
        raise SystemExit(143)

    monkeypatch.setattr(run_tools.Path, "write_text", stopped)
    with pytest.raises(SystemExit):
        run_tools.write(path, "two")
    assert path.read_text() == "one" and list(path.parent.iterdir()) == [path]


def test_results_in_a_page(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("before\n")
    for text in ("one", "two"):
        run_tools.write_results(page, text)
    assert page.read_text().count("before") == 1 and "one" not in page.read_text()
    page.write_text(f"a\n{run_tools.RESULTS_BEGIN}\nb\n")
    with pytest.raises(ValueError, match="README.md: .* without .*end of results"):
        run_tools.write_results(page, "three")
    assert page.read_text().endswith("b\n")


def test_no_repository_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(run_tools, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert run_tools.commit() == ""
