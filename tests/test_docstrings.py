"""``fairseq-rum prepare docstrings``: real pairs, parsed and not imported, with nothing leaking."""

import sys

import pytest
from test_prepare_summarization import content, restore

from fairseq_rum.cli.main import main
from fairseq_rum.data import docstrings
from fairseq_rum.data.docstrings import (
    Docstring,
    parse_docstring,
    read_module,
    source_files,
    split_docstrings,
    split_of,
)

BODY = " ".join(f"word{i}" for i in range(30))

MODULE = '''"""Title of the module.

{body} module
"""
if True:
    import nothing_like_this
    class A(unknown):
        """Title of the class A.

        {body} class
        """
        def f(self):
            """Title of the method f.

            First paragraph
            goes on. {body}

            Heading
            -------
            >>> f()
            3
            """
            def inner():
                "Title of the inner function.\\n\\n{body} inner"
        async def g(self): "No body at all here."
    x = 1
    "This string is not a docstring.\\n\\n{body}"
raise SystemExit("a module that is never run")
'''


def test_what_is_read_of_a_module(tmp_path):
    path = tmp_path / "module.py"
    path.write_text("# coding: latin-1\n" + MODULE.format(body=BODY + " \xe9"), encoding="latin-1")
    pairs = read_module("package.module", path)
    assert [pair.summary for pair in pairs] == [
        "Title of the module.",
        "Title of the class A.",
        "Title of the method f.",
        "Title of the inner function.",
    ]
    method = pairs[2]
    assert method.body == [f"First paragraph goes on. {BODY} \xe9", "Heading >>> f() 3"]
    assert method.pair().source == method.body and method.pair().targets == [method.summary]


@pytest.mark.parametrize("source", [b"print 'old'", b"a\0b", b"\xff", b"(" * 10_000, b""])
def test_what_is_not_python(tmp_path, source):
    (tmp_path / "a.py").write_bytes(source)
    assert read_module("a", tmp_path / "a.py") == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Only a summary line.",
        "Too short.\n\n" + BODY,
        "long " * 31 + "\n\n" + BODY,
        "A good summary line.\n\n" + " ".join(BODY.split()[:29]),
        "f(a, b, c=None) -> int\n\n" + BODY,
        "=====\n\n-----",
        "Half a character \ud83e here.\n\n" + BODY,
    ],
)
def test_what_is_no_pair(text):
    assert parse_docstring("m", text) is None


def test_paragraphs():
    text = f"\n\n  A summary\n  of two lines.\n\n\n  {BODY}\n  ----\n\n  second   one\n"
    pair = parse_docstring("m", text)
    assert pair == Docstring("m", "A summary of two lines.", [BODY, "second one"])


def test_tests_and_other_packages_are_left_out(tmp_path):
    for name in ("b.py", "a/__init__.py", "a/tests/x.py", "test/y.py", "site-packages/z.py", "c.c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    names = [name for name, _ in source_files("scikit-learn", tmp_path)]
    assert names == ["sklearn.a.__init__", "sklearn.b"]


def module_of(split):
    """Modules of a split, one after the other."""
    return (f"m{i}" for i in range(10_000) if split_of(f"m{i}") == split)


def test_modules_are_split_in_the_same_way_for_ever():
    assert [i for i in range(30) if split_of(f"m{i}") != "train"] == [8, 14, 16, 22]
    counts = {split: sum(1 for _ in module_of(split)) for split in ("train", "valid", "test")}
    assert counts == {"train": 8979, "valid": 530, "test": 491}


def words(start, stop):
    return [" ".join(f"word{i}" for i in range(start, stop))]


def test_no_copy_is_in_two_splits():
    train, valid, test = (next(module_of(split)) for split in ("train", "valid", "test"))
    kept = [
        Docstring(test, "One", words(0, 40)),
        Docstring(valid, "Two", words(100, 140)),
        Docstring(train, "Three", words(200, 240)),
        # 17 of 33 sequences of 8 words are half of them; less stays.
        Docstring(train, "Four", [*words(0, 23), *words(300, 317)]),
        Docstring(train, "Three", words(400, 440)),  # within a split summaries may be the same
    ]
    left_out = [
        Docstring(train, "ONE", words(500, 540)),  # summary of a test pair
        Docstring(valid, "one", words(600, 640)),
        Docstring(train, "Five", [" ".join(words(0, 40)).upper()]),  # the same body
        Docstring(train, "Six", [*words(100, 125), *words(700, 715)]),  # nearly
        Docstring(train, "Seven", words(5, 20)),  # within a longer one
        Docstring(train, "Eight", words(200, 240)),  # twice in train
    ]
    by_split, count = split_docstrings([*kept, *left_out])
    assert count == len(left_out)
    assert by_split == {"train": kept[2:], "valid": kept[1:2], "test": kept[:1]}


def test_numpy(tmp_path, capsys):
    """The command on a package that is always there: the same for any number of processes."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for workers, folder in enumerate(folders, 1):
        command = ["prepare", "docstrings", "--packages", "numpy", "--vocabulary", "500"]
        assert main([*command, "--destdir", str(folder), "--workers", str(workers)]) == 0
    assert content(folders[0]) == content(folders[1])

    splits = {split: restore(folders[0], split) for split in ("train", "valid", "test")}
    assert sum(map(len, splits.values())) > 500
    for other in ("valid", "test"):
        for side in (0, 1):
            texts = {pair[side] for pair in splits[other]}
            assert texts and texts.isdisjoint(pair[side] for pair in splits["train"])
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("numpy ") and shown[0].endswith(" pairs")
    assert "left out: they are twice there, or nearly" in shown[1]


def test_packages_are_not_imported(tmp_path, monkeypatch, capsys):
    package = tmp_path / "never_imported"
    package.mkdir()
    for i in range(8):
        text = MODULE.format(body=" ".join(f"w{i}x{j}" for j in range(30)))
        name = f"module{i}.py" if i else "__init__.py"
        (package / name).write_text(text.replace("Title", f"Title {i}"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(docstrings.PACKAGES, "numpy", "never_imported")
    monkeypatch.setitem(docstrings.PACKAGES, "scipy", "no_such_package")
    command = ["prepare", "docstrings", "--destdir", str(tmp_path / "data")]
    assert main([*command, "--packages", "numpy"]) == 0
    assert "never_imported" not in sys.modules
    assert ": 32 pairs\n0 of 32 pairs left out" in capsys.readouterr().out
    assert main([*command[:-1], str(tmp_path / "other"), "--packages", "scipy"]) == 2
    assert "--packages scipy: is not installed" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
