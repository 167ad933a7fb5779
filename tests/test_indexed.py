"""A damaged binary split is named in one sentence, whatever was done to it."""

import struct
import tracemalloc

import numpy as np
import pytest
import torch
from conftest import run_fairseq
from fairseq.data import Dictionary, indexed_dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_rum.data.indexed import load_split
from fairseq_rum.errors import InputError

ROWS = [[4, 5, 2], [2], [6, 6, 4, 5, 2], []]
HEADER = 26  # bytes of the newer index before its rows


@pytest.fixture(scope="module")
def dictionary():
    words = Dictionary()
    for word in "abc":
        words.add_symbol(word)
    return words


def write(folder, impl="mmap", rows=ROWS, name="train"):
    path = str(folder / name)
    builder = indexed_dataset.make_builder(f"{path}.bin", impl, vocab_size=7)
    for row in rows:
        builder.add_item(torch.IntTensor(row))
    builder.finalize(f"{path}.idx")
    return path


@pytest.mark.parametrize(
    "impl, given", [("mmap", None), ("mmap", "mmap"), ("cached", None), ("cached", "cached")]
)
def test_a_whole_split_loads(tmp_path, dictionary, impl, given):
    path = write(tmp_path, impl)
    assert [row.tolist() for row in load_split(path, dictionary, given)] == ROWS


def test_splits_that_are_combined_are_checked(tmp_path, dictionary):
    path = write(tmp_path)
    more = write(tmp_path, name="train1")
    assert len(load_split(path, dictionary, combine=True)) == 2 * len(ROWS)
    assert len(load_split(path, dictionary)) == len(ROWS)
    with open(f"{more}.bin", "ab") as file:
        file.write(b"x")
    assert len(load_split(path, dictionary)) == len(ROWS)
    with pytest.raises(InputError, match="train1.bin: has 19 bytes"):
        load_split(path, dictionary, combine=True)


def put(offset, data):
    return lambda whole: whole[:offset] + data + whole[offset + len(data) :]


DAMAGE = {
    "index without its end": ("idx", lambda x: x[:-8], "has 66 bytes, but 4 rows take 74"),
    "index too long": ("idx", lambda x: x + b"12345678", "train.idx: has 82 bytes"),
    "index within its header": ("idx", lambda x: x[:20], "ends within its first 26 bytes"),
    "empty index": ("idx", lambda x: b"", "is no index of fairseq's"),
    "text": ("idx", lambda x: b"hello " * 40, "is no index of fairseq's"),
    "magic": ("idx", put(2, b"X"), "is no index of fairseq's"),
    "version": ("idx", put(9, b"\2"), "states version 2 and dtype 8"),
    "no such dtype": ("idx", put(17, b"\x63"), "states version 1 and dtype 99"),
    "tokens that are no integers": ("idx", put(17, b"\6"), "states version 1 and dtype 6"),
    "another dtype": ("idx", put(17, b"\4"), "rows do not follow one another"),
    "rows": ("idx", put(18, struct.pack("<Q", 2**61)), "2,305,843,009,213,693,952 rows take"),
    "a size": ("idx", put(HEADER, struct.pack("<i", 2)), "rows do not follow one another"),
    "a negative size": ("idx", put(HEADER, struct.pack("<i", -3)), "rows do not follow"),
    "an address": ("idx", put(HEADER + 24, struct.pack("<q", 8)), "rows do not follow"),
    "data without their end": (
        "bin",
        lambda x: x[:-2],
        "train.bin: has 16 bytes, but the .* tokens",
    ),
    "empty data": ("bin", lambda x: b"", "train.bin: has 0 bytes"),
    "a symbol": ("bin", put(4, b"\7"), "token 2 is symbol 7, but the dictionary has 7"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_to_the_newer_form(tmp_path, dictionary, damage):
    suffix, change, message = damage
    path = write(tmp_path)
    with open(f"{path}.{suffix}", "rb") as file:
        whole = file.read()
    with open(f"{path}.{suffix}", "wb") as file:
        file.write(change(whole))
    with pytest.raises(InputError, match=message) as caught:
        load_split(path, dictionary)
    assert f"train.{suffix}" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", ["idx", "bin"])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_bytes_changed_at_random_are_found_or_harmless(tmp_path_factory, dictionary, suffix, data):
    """Nothing but InputError, and what loads can be read as symbols of the dictionary."""
    impl = data.draw(st.sampled_from(["mmap", "cached"]))
    path = write(tmp_path_factory.mktemp("random"), impl)
    with open(f"{path}.{suffix}", "rb") as file:
        whole = bytearray(file.read())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with open(f"{path}.{suffix}", "wb") as file:
        file.write(whole[: data.draw(st.one_of(st.none(), st.integers(0, len(whole))))])
    try:
        rows = load_split(path, dictionary)
    except InputError as error:
        assert "\n" not in str(error)
        return
    for row in rows:
        assert all(0 <= symbol < len(dictionary) for symbol in row.tolist())


def test_what_is_not_there(tmp_path, dictionary):
    with pytest.raises(InputError, match=r"no split 'train' in the data directory \(.*train.bin"):
        load_split(str(tmp_path / "train"), dictionary)
    path = write(tmp_path)
    (tmp_path / "train.idx").unlink()
    with pytest.raises(InputError, match="train.idx: no such file, but there is the other half"):
        load_split(path, dictionary)


def test_an_index_is_not_believed_before_it_is_checked(tmp_path, dictionary):
    """An index that claims 10^12 tokens is refused without memory for them."""
    path = write(tmp_path)
    with open(f"{path}.idx", "r+b") as file:
        file.seek(18)
        file.write(struct.pack("<Q", 10**12))
    tracemalloc.start()
    with pytest.raises(InputError, match="rows take 12,000,000,000,026"):
        load_split(path, dictionary)
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


def test_many_tokens_take_little_memory(tmp_path, dictionary):
    path = write(tmp_path, rows=[])
    rows = np.full((1000, 20000), 4, dtype=np.uint16)  # 40 MB
    rows[-1, -1] = 9
    rows.tofile(f"{path}.bin")
    with indexed_dataset.MMapIndexedDataset.Index.writer(f"{path}.idx", np.uint16) as index:
        index.write([rows.shape[1]] * len(rows))
    tracemalloc.start()
    with pytest.raises(InputError, match="token 19,999,999 is symbol 9"):
        load_split(path, dictionary)
    assert tracemalloc.get_traced_memory()[1] < 3e7
    tracemalloc.stop()


def test_a_command_names_the_file(char_data, tmp_path):
    import shutil

    from test_language_model import train_arguments

    shutil.copytree(char_data, tmp_path / "data")
    with open(tmp_path / "data" / "valid.bin", "r+b") as file:
        file.truncate(1000)
    with pytest.raises(InputError, match="data/valid.bin: has 1,000 bytes, but the .* tokens"):
        run_fairseq("train", *train_arguments(tmp_path / "data", tmp_path / "out"))
