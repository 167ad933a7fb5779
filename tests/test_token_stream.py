"""Streams and windows: every token is a target exactly once, in order, after its predecessor."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_rum.data.carried_state import CarriedState
from fairseq_rum.data.token_stream import StreamWindows, TokenStream
from fairseq_rum.errors import InputError

PAD, EOS = 1, 2


class Lines(list):
    """What :class:`TokenStream` needs of an indexed dataset."""

    @property
    def sizes(self):
        return [len(line) for line in self]


def lines_of(lengths):
    """Lines of ascending tokens, so that a token tells its position (+ 10)."""
    tokens = iter(range(10, 10 + sum(lengths)))
    return Lines(torch.tensor([next(tokens) for _ in range(n)], dtype=torch.int) for n in lengths)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=30),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 3),
    st.booleans(),
)
def test_every_token_is_a_target_once(lengths, batch, window, shards, drop_last):
    if sum(lengths) - drop_last < batch * shards * window:
        return
    stream = TokenStream(lines_of(lengths), "train", drop_last)
    seen = {}
    windows_of_shards = set()
    for shard in range(shards):
        windows = StreamWindows(stream, batch, window, PAD, EOS, shards, shard)
        windows_of_shards.add(len(windows))
        for index in range(len(windows)):
            sample = windows.collater([windows[index]])
            inputs, target = sample["net_input"]["src_tokens"], sample["target"]
            assert sample["window"] == index and inputs.shape == target.shape
            assert inputs.shape[0] == batch and inputs.shape[1] <= window
            assert sample["ntokens"] == int(target.ne(PAD).sum())
            assert torch.equal(inputs.eq(PAD), target.eq(PAD))
            for row in range(batch):
                for x, y in zip(inputs[row].tolist(), target[row].tolist()):
                    if y != PAD:
                        assert y not in seen
                        seen[y] = (int(sample["id"][row]), index)
                        assert x == (y - 1 if y > 10 else EOS)
    assert sorted(seen) == list(range(10, 10 + len(stream)))
    assert len(windows_of_shards) == 1, "processes would wait for each other"
    order = [seen[token] for token in sorted(seen)]
    assert order == sorted(order), "a stream is contiguous and its windows ascend"


def test_stream_slices_like_the_concatenation():
    lines = lines_of([3, 1, 1, 5, 2])
    stream, flat = TokenStream(lines, "x"), torch.cat(list(lines)).long()
    for start in range(len(flat) + 1):
        for end in range(start, len(flat) + 1):
            assert torch.equal(stream.tokens(start, end), flat[start:end])
    with pytest.raises(IndexError):
        stream.tokens(0, len(flat) + 1)


def test_empty_and_short_splits_are_refused():
    with pytest.raises(InputError, match="split valid is empty"):
        TokenStream(Lines(), "valid")
    with pytest.raises(InputError, match="split valid is empty"):
        TokenStream(lines_of([1]), "valid", drop_last=True)
    stream = TokenStream(lines_of([99]), "valid")
    with pytest.raises(InputError, match="99 tokens, fewer than --batch-size 10 x --tokens-per-sa"):
        StreamWindows(stream, 10, 10, PAD, EOS)
    with pytest.raises(InputError, match="--batch-size 5 x 2 processes x --tokens-per-sample 10"):
        StreamWindows(stream, 5, 10, PAD, EOS, num_shards=2)


def test_carried_state_follows_windows_only():
    model = torch.nn.Linear(1, 1)
    carried = CarriedState()
    state = [(torch.ones(1, 1, requires_grad=True) * 2,)]
    carried.begin(0)
    assert carried.get(model) is None
    carried.set(model, state)
    assert carried.get(model) is None, "a window that is tried again starts as it did"
    carried.begin(0)
    assert carried.get(model) is None
    carried.set(model, state)
    carried.begin(1)
    assert torch.equal(carried.get(model)[0][0], state[0][0])
    assert not carried.get(model)[0][0].requires_grad
    assert carried.get(torch.nn.Linear(1, 1)) is None, "another model has another state"
    carried.begin(1)
    assert carried.get(model) is not None
    with pytest.raises(RuntimeError, match="no hidden state for window 3"):
        carried.begin(3)
    carried.begin(0)
    assert carried.get(model) is None, "a new pass starts from the initial state"


def test_carried_state_continues_a_checkpoint():
    model = torch.nn.Linear(1, 1)
    carried = CarriedState()
    carried.restore(7, [(torch.full((2, 3), 5.0),)])
    carried.begin(7)
    assert carried.get(model)[0][0].eq(5).all()
    carried.set(model, [(torch.full((2, 3), 6.0),)])
    carried.begin(8)
    assert carried.get(model)[0][0].eq(6).all()
    carried.begin(0)
    assert carried.get(model) is None
