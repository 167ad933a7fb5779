"""A corpus for summarization that is already there: docstrings of the installed packages.

The first paragraph of a docstring is the summary of the others. Sources are parsed, never imported
or run. For given versions of Python and the packages the pairs are always the same.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import platform
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Union

from fairseq_rum.data.summaries import Pair
from fairseq_rum.data.summary_statistics import ngrams

#: Distribution -> the package that it installs; ``python`` is the standard library.
PACKAGES = {
    "python": "",
    "numpy": "numpy",
    "scipy": "scipy",
    "torch": "torch",
    "scikit-learn": "sklearn",
}
SPLITS = ("train", "valid", "test")

_NOT_DOCUMENTED = {
    *("site-packages", "dist-packages", "__pycache__", "_bundled"),
    *("test", "tests", "testing", "idlelib", "turtledemo"),
}
_SUMMARY_WORDS = range(3, 31)
_LEAST_BODY_WORDS = 30
_SIGNATURE = re.compile(r"\w[\w.]*\(.*\)(\s*->.*)?")
_RULE = re.compile(r"[^\w\s]*")  # a line under a heading, the border of a table
_DOCUMENTED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_SHINGLE = 8


@dataclass(frozen=True)
class Docstring:
    """One pair, and the module that it is from, as ``scipy.stats._qmc``."""

    module: str
    summary: str
    body: Sequence[str]  # paragraphs

    def pair(self) -> Pair:
        """The pair of body and summary."""
        return Pair(self.body, [self.summary], ("paragraphs",))


def package_folder(distribution: str) -> Optional[Path]:
    """The folder of a package's sources; None if it is not installed. Nothing is imported."""
    package = PACKAGES[distribution]
    if not package:
        return Path(sysconfig.get_paths()["stdlib"])
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


def package_version(distribution: str) -> str:
    """The version that is installed."""
    if distribution == "python":
        return platform.python_version()
    return importlib.metadata.version(distribution)


def source_files(distribution: str, folder: Path) -> list[tuple[str, Path]]:
    """Name and path of each module of a package, tests left out, sorted by name."""
    prefix = [PACKAGES[distribution]] if PACKAGES[distribution] else []
    files = []
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        if _NOT_DOCUMENTED.isdisjoint(parts):
            files.append((".".join([*prefix, *parts]), path))
    return sorted(files)


def read_module(module: str, path: Union[str, Path]) -> list[Docstring]:
    """The pairs in a source file, in its order; none if it is not Python of this version."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about string literals of others
        try:
            tree = ast.parse(Path(path).read_bytes())
        except (SyntaxError, ValueError, RecursionError):
            return []
    texts = (ast.get_docstring(node) for node in _documented(tree))
    pairs = (parse_docstring(module, text) for text in texts if text)
    return [pair for pair in pairs if pair is not None]


def _documented(node: ast.AST) -> Iterator[ast.AST]:
    """The module, and the classes and functions in it; not what functions compute inside."""
    yield node
    statements = list(node.body)
    for statement in statements:
        if isinstance(statement, _DOCUMENTED):
            yield from _documented(statement)
        elif isinstance(statement, (ast.If, ast.Try, ast.With)):
            for part in ("body", "orelse", "finalbody"):
                statements.extend(getattr(statement, part, []))


def parse_docstring(module: str, text: str) -> Optional[Docstring]:
    """Summary and body of a cleaned docstring; None if one is missing, or too short or long."""
    lines = (line.strip() for line in text.split("\n"))
    text = "\n".join(line for line in lines if not line or not _RULE.fullmatch(line))
    summary, *body = (
        " ".join(paragraph.split()) for paragraph in re.split(r"\n\n+", text.strip("\n"))
    )
    words = sum(len(paragraph.split()) for paragraph in body)
    if (
        len(summary.split()) not in _SUMMARY_WORDS
        or words < _LEAST_BODY_WORDS
        or _SIGNATURE.fullmatch(summary)
    ):
        return None
    try:
        "\n".join([summary, *body]).encode("utf-8")
    except UnicodeEncodeError:  # a docstring about surrogates
        return None
    return Docstring(module, summary, body)


def split_of(module: str) -> str:
    """The split of all pairs of a module: train 18 of 20, valid and test one each, by a hash."""
    number = int.from_bytes(hashlib.sha256(module.encode("utf-8")).digest()[:8], "big") % 20
    return {0: "test", 1: "valid"}.get(number, "train")


def split_docstrings(pairs: Iterable[Docstring]) -> tuple[dict[str, list[Docstring]], int]:
    """Split by module, without texts that are in two splits or twice in one.

    A pair leaves train when its summary or body is in valid or test, or when its body is a near
    copy of one there: more than half of the sequences of 8 words of the shorter one are in both. It
    leaves valid in the same way for test.

    Returns:
        Split -> its pairs, and how many were left out.
    """
    by_split: dict[str, list[Docstring]] = {split: [] for split in SPLITS}
    bodies = set()
    left_out = 0
    for pair in pairs:
        body = " ".join(pair.body).lower()
        if body in bodies:
            left_out += 1
        else:
            bodies.add(body)
            by_split[split_of(pair.module)].append(pair)

    held_out = _Texts()
    for split in reversed(SPLITS):
        before = by_split[split]
        by_split[split] = [pair for pair in before if not held_out.have(pair)]
        left_out += len(before) - len(by_split[split])
        for pair in by_split[split] if split != "train" else []:
            held_out.add(pair)
    return by_split, left_out


class _Texts:
    """Pairs of one split, to find copies of them in another."""

    def __init__(self) -> None:
        self._summaries: set[str] = set()
        self._owners: dict[str, list[int]] = {}
        self._sizes: list[int] = []

    def add(self, pair: Docstring) -> None:
        self._summaries.add(pair.summary.lower())
        shingles = _shingles(pair)
        for shingle in shingles:
            self._owners.setdefault(shingle, []).append(len(self._sizes))
        self._sizes.append(len(shingles))

    def have(self, pair: Docstring) -> bool:
        """Whether the summary is here, or a body that is nearly the same."""
        if pair.summary.lower() in self._summaries:
            return True
        shingles = _shingles(pair)
        common = Counter(owner for shingle in shingles for owner in self._owners.get(shingle, ()))
        return any(
            2 * count > min(len(shingles), self._sizes[owner]) for owner, count in common.items()
        )


def _shingles(pair: Docstring) -> set[str]:
    words = " ".join(pair.body).lower().split()
    return {" ".join(shingle) for shingle in ngrams(words, _SHINGLE)}
