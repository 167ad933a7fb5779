"""The command as a user starts it. What the subcommands do is tested with each of them."""

import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

import fairseq_rum
from fairseq_rum.cli.main import main

PACKAGE = Path(fairseq_rum.__path__[0]).absolute()


def _run_from_elsewhere(folder, *args, start=("-m", "fairseq_rum.cli.main")):
    """The real command in a process of its own, started in a folder that is not the repository."""
    path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, *start, *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_user_dir_is_what_fairseq_takes(tmp_path):
    result = _run_from_elsewhere(tmp_path, "user-dir")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{PACKAGE}\n"

    from fairseq.utils import import_user_module

    import_user_module(Namespace(user_dir=result.stdout.strip()))


@pytest.mark.parametrize(
    "arguments",
    [["prepare", "chars", "--trainpref", "a", "--destdir", "d"], ["ask", "--checkpoint", "a"]],
)
def test_without_fairseq_it_says_what_to_install(tmp_path, arguments):
    (tmp_path / "a").write_text("abc\n")
    program = (
        "import sys\n"
        "sys.modules['fairseq'] = sys.modules['fairseq_cli'] = None\n"
        "import fairseq_rum.compat as compat; compat.fairseq_installed = lambda: False\n"
        "from fairseq_rum.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    result = _run_from_elsewhere(tmp_path, *arguments, start=("-c", program))
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert "fairseq-rum: error: fairseq is not installed: " in result.stderr
    assert {p.name for p in tmp_path.iterdir()} == {"a"}


def test_bad_input_is_one_sentence_and_status_2(tmp_path):
    result = _run_from_elsewhere(
        tmp_path, "prepare", "chars", "--trainpref", "absent.txt", "--destdir", "data"
    )
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == (
        "fairseq-rum: error: --trainpref absent.txt: no such file"
    )
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["--version"], "fairseq-rum "),
        (["--help"], "user-dir"),
        (["prepare", "--help"], "Binarize text files by characters or bytes"),
        (["prepare", "chars", "--help"], "--trainpref FILE"),
    ],
)
def test_help_and_version(capsys, command, expected):
    with pytest.raises(SystemExit) as stop:
        main(command)
    assert stop.value.code == 0
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize("command", [[], ["prepare"], ["prepare", "chars"], ["unheard-of"]])
def test_incomplete_commands_show_the_usage(capsys, command):
    with pytest.raises(SystemExit) as stop:
        main(command)
    assert stop.value.code == 2
    assert "usage: fairseq-rum" in capsys.readouterr().err
