"""fairseq's binary splits, checked before anything is trained on them.

fairseq believes an index: a wrong one maps memory that is not there, or reads other tokens. All
tasks load their splits here. The check reads a split once, in pieces (fairseq does the same to
bring it into memory), so that it costs about as much as that, whatever an index claims.
"""

from __future__ import annotations

import itertools
import os
import struct
from typing import Any, Optional

import numpy as np
from fairseq.data import Dictionary, data_utils, indexed_dataset
from fairseq.data.huffman import HuffmanMMapIndex

from fairseq_rum.errors import InputError

_MMAP = indexed_dataset.MMapIndexedDataset.Index._HDR_MAGIC
_LEGACY = indexed_dataset.IndexedDataset._HDR_MAGIC
_MMAP_HEADER = struct.Struct("<9sQBQ")  # magic, version, code of the dtype, rows
_LEGACY_HEADER = struct.Struct("<8sQQQQQ")  # magic, version, code, size of a token, rows, sizes
_PIECE = 1 << 22  # tokens


def load_split(
    path: str, dictionary: Dictionary, impl: Optional[str] = None, combine: bool = False
) -> Any:
    """A split that fairseq-preprocess wrote, as an indexed dataset of fairseq.

    Args:
        path: data directory and name of the split, without ``.bin`` and ``.idx``.
        dictionary: of its symbols.
        impl: fairseq's ``--dataset-impl``; None to look at the files.
        combine: with it, and a path to ``train``, the splits ``train1`` and so on follow.

    Raises:
        InputError: it is missing, empty, or its files are damaged or not of this dictionary.
    """
    for number in itertools.count():
        part = f"{path}{number or ''}"
        if number and not (combine and os.path.exists(f"{part}.idx")):
            break
        _check(part, len(dictionary))
    try:
        impl = impl or indexed_dataset.infer_dataset_impl(path)
        if impl == "cached":
            impl = "lazy"  # the same files; "cached" gives only rows that were announced to it
        rows = data_utils.load_indexed_dataset(path, dictionary, impl, combine, default="mmap")
    except Exception as error:  # fairseq asserts, and lets numpy and struct complain
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"split {os.path.basename(path)} ({path}) cannot be read: {reason}") from (
            error
        )
    if rows is None:
        raise InputError(f"no split {os.path.basename(path)!r} in the data directory ({path}.bin)")
    return rows


def _check(path: str, symbols: int) -> None:
    """Compare an index with its length and with the data.

    Raises:
        InputError: they do not belong together, or one is damaged.
    """
    index, data = f"{path}.idx", f"{path}.bin"
    missing = [file for file in (index, data) if not os.path.exists(file)]
    if len(missing) == 1:
        raise InputError(f"{missing[0]}: no such file, but there is the other half of the split")
    if missing:
        return
    try:
        with open(index, "rb") as file:
            start = file.read(max(_MMAP_HEADER.size, _LEGACY_HEADER.size))
        if start.startswith(_MMAP):
            _check_mmap(index, data, start, symbols)
        elif start.startswith(_LEGACY):
            _check_legacy(index, data, start, symbols)
        elif not start.startswith(HuffmanMMapIndex._HDR_MAGIC):
            raise InputError(f"{index}: is no index of fairseq's")
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read ({error.strerror})") from error


def _check_mmap(index: str, data: str, start: bytes, symbols: int) -> None:
    _, version, code, rows = _header(index, _MMAP_HEADER, start)
    dtype = _dtype(index, version, code)
    _check_length(index, _MMAP_HEADER.size + 12 * rows, f"{rows:,} rows")
    _check_rows(data, rows)
    table = np.memmap(index, np.uint8, "r", _MMAP_HEADER.size)
    sizes = table[: 4 * rows].view(np.int32)
    addresses = table[4 * rows :].view(np.int64)
    ends = np.cumsum(sizes, dtype=np.int64)
    follow = np.array_equal(ends[:-1] * dtype.itemsize, addresses[1:])
    if sizes.min() < 0 or addresses[0] != 0 or not follow:
        raise InputError(f"{index}: is damaged, its rows do not follow one another")
    _check_tokens(index, data, int(ends[-1]), dtype)
    _check_symbols(data, dtype, 0, symbols)


def _check_legacy(index: str, data: str, start: bytes, symbols: int) -> None:
    """The older form, ``--dataset-impl lazy`` or ``cached``, whose tokens count from 1."""
    _, version, code, itemsize, rows, sizes = _header(index, _LEGACY_HEADER, start)
    dtype = _dtype(index, version, code)
    numbers = 2 * (rows + 1) + sizes
    _check_length(index, _LEGACY_HEADER.size + 8 * numbers, f"{rows:,} rows")
    _check_rows(data, rows)
    table = np.memmap(index, np.int64, "r", _LEGACY_HEADER.size)
    dimensions, offsets = table[: rows + 1], table[rows + 1 : 2 * (rows + 1)]
    lengths = table[2 * (rows + 1) :]
    one_each = np.array_equal(dimensions, np.arange(rows + 1)) and sizes == rows
    follow = offsets[0] == 0 and np.array_equal(np.diff(offsets), lengths) and lengths.min() >= 0
    if not one_each or not follow or itemsize != dtype.itemsize:
        raise InputError(f"{index}: is damaged, its rows do not follow one another")
    _check_tokens(index, data, int(offsets[-1]), dtype)
    _check_symbols(data, dtype, 1, symbols)


def _header(index: str, form: struct.Struct, start: bytes) -> tuple[Any, ...]:
    if len(start) < form.size:
        raise InputError(f"{index}: is damaged, it ends within its first {form.size} bytes")
    return form.unpack(start[: form.size])


def _dtype(index: str, version: int, code: int) -> np.dtype:
    dtype = np.dtype(indexed_dataset._code_to_dtype.get(code, float))
    if version != 1 or dtype.kind not in "iu":
        raise InputError(f"{index}: is damaged, it states version {version} and dtype {code}")
    return dtype


def _check_length(path: str, expected: int, holds: str) -> None:
    found = os.path.getsize(path)
    if found != expected:
        raise InputError(
            f"{path}: has {found:,} bytes, but {holds} take {expected:,}: it is truncated, or one "
            "of the two files is of another split"
        )


def _check_rows(data: str, rows: int) -> None:
    if not rows:
        raise InputError(f"split {os.path.basename(data)[: -len('.bin')]} ({data}) is empty")


def _check_tokens(index: str, data: str, tokens: int, dtype: np.dtype) -> None:
    listed = f"the {tokens:,} tokens that {os.path.basename(index)} lists"
    _check_length(data, tokens * dtype.itemsize, listed)


def _check_symbols(data: str, dtype: np.dtype, first: int, symbols: int) -> None:
    """Look at every token; ``first`` is what stands for symbol 0."""
    position = 0
    with open(data, "rb") as file:
        while len(piece := np.fromfile(file, dtype, _PIECE)):
            if piece.min() < first or piece.max() >= symbols + first:
                place = int(((piece < first) | (piece >= symbols + first)).argmax())
                raise InputError(
                    f"{data}: token {position + place:,} is symbol {int(piece[place]) - first}, "
                    f"but the dictionary has {symbols:,}: the file is damaged, or of another "
                    "dictionary"
                )
            position += len(piece)
