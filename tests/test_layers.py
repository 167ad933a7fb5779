"""The drop-in layers against torch.nn.LSTM's and GRU's calling convention."""

import subprocess
import sys

import pytest
import torch
from conftest import ROOT
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fairseq_rum.cells import build_cell
from fairseq_rum.errors import InputError
from fairseq_rum.layers import RNN, RUM, RecurrentLayer, StackedRecurrent

LENGTHS = torch.tensor([4, 6, 1, 6])


def padding_mask(lengths=LENGTHS):
    return torch.arange(int(lengths.max())).unsqueeze(0) >= lengths.unsqueeze(1)


def twins(unit, **kwargs):
    """Our layer and torch's with the same weights, float64."""
    torch_class = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[unit]
    ours, theirs = RNN(unit, 3, 5, 2, **kwargs).double(), torch_class(3, 5, 2, **kwargs).double()
    for index, layer in enumerate(ours.stack.layers):
        directions = ours.stack.num_directions
        suffix = f"_l{index // directions}" + ("_reverse" if index % directions else "")
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(layer.cell, name).data.copy_(getattr(theirs, name + suffix).data)
    return ours, theirs


def equal(found, expected):
    if isinstance(expected, tuple):
        return len(found) == len(expected) and all(equal(*pair) for pair in zip(found, expected))
    return found.shape == expected.shape and (found - expected).abs().max() < 1e-12


@pytest.mark.parametrize("backend", ["naive", "auto"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("unit", ["lstm", "gru"])
def test_equals_torch(unit, batch_first, bidirectional, backend):
    ours, theirs = twins(unit, batch_first=batch_first, bidirectional=bidirectional)
    for layer in ours.stack.layers:
        layer.backend = backend
    x = torch.randn(6, 4, 3, dtype=torch.float64)
    output, hidden = theirs(x)
    assert equal(ours(x), (output, hidden))
    assert equal(ours(x, hidden) if not batch_first else ours(x, None), theirs(x, hidden)
                 if not batch_first else theirs(x, None))  # fmt: skip
    assert equal(ours(x[:, 0]), theirs(x[:, 0])), "a sequence without batch"


@pytest.mark.parametrize("enforce_sorted", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("unit", ["lstm", "gru"])
def test_packed_sequences_equal_torch(unit, bidirectional, enforce_sorted):
    ours, theirs = twins(unit, bidirectional=bidirectional)
    lengths = LENGTHS.sort(descending=True).values if enforce_sorted else LENGTHS
    packed = pack_padded_sequence(
        torch.randn(6, 4, 3, dtype=torch.float64), lengths, enforce_sorted=enforce_sorted
    )
    initial = theirs(torch.randn(2, 4, 3, dtype=torch.float64))[1]
    for hidden in (None, initial):
        found, expected = ours(packed, hidden), theirs(packed, hidden)
        assert equal(found[0].data, expected[0].data)
        assert equal(found[1], expected[1])
        for name in ("batch_sizes", "sorted_indices", "unsorted_indices"):
            a, b = getattr(found[0], name), getattr(expected[0], name)
            assert (a is None and b is None) or torch.equal(a, b)


@pytest.mark.parametrize("lambda_", [0, 1])
def test_rum_on_packed_sequences_is_rum_on_each(lambda_):
    rum = RUM(3, 5, 2, bidirectional=True, lambda_=lambda_).double()
    x = torch.randn(6, 4, 3, dtype=torch.float64)
    packed, hidden = rum(pack_padded_sequence(x, LENGTHS, enforce_sorted=False))
    output, lengths = pad_packed_sequence(packed)
    assert torch.equal(lengths, LENGTHS)
    parts = hidden if lambda_ else (hidden,)
    assert [tuple(p.shape) for p in parts] == [(4, 4, 5), (4, 4, 5, 5)][: 1 + lambda_]
    for row, length in enumerate(LENGTHS.tolist()):
        alone, last = rum(x[:length, row])
        assert equal(output[:length, row], alone)
        for part, single in zip(parts, last if lambda_ else (last,)):
            assert equal(part[:, row], single)


def test_hidden_state_continues_a_sequence():
    rum = RUM(3, 5, 2, lambda_=1, eta=1.0).double()
    x = torch.randn(7, 2, 3, dtype=torch.float64)
    whole, last = rum(x)
    first, hidden = rum(x[:4])
    second, end = rum(x[4:], hidden)
    assert equal(torch.cat([first, second]), whole)
    assert equal(end, last)
    assert (whole.norm(dim=-1) - 1).abs().max() < 1e-12


def test_dropout_between_layers_only_in_training():
    rum = RUM(3, 50, 2, dropout=0.5)
    x = torch.randn(7, 2, 3)
    rum.eval()
    assert torch.equal(rum(x)[0], rum(x)[0])
    rum.train()
    assert not torch.equal(rum(x)[0], rum(x)[0])
    assert torch.equal(RUM(3, 5, 1, dropout=0.5)(x)[0] * 0, torch.zeros(7, 2, 5))


def test_padding_carries_state_through_in_both_directions():
    for reverse in (False, True):
        layer = RecurrentLayer(build_cell("rum", 3, 5, lambda_=1), reverse).double()
        x = torch.randn(4, 6, 3, dtype=torch.float64)
        output, state = layer(x, padding_mask=padding_mask())
        assert output[padding_mask()].eq(0).all()
        for row, length in enumerate(LENGTHS.tolist()):
            alone, last = layer(x[row : row + 1, :length])
            assert equal(output[row, :length], alone[0])
            assert all(equal(a[row], b[0]) for a, b in zip(state, last))


def test_left_padding():
    layer = RecurrentLayer(build_cell("rum", 3, 5)).double()
    x = torch.randn(4, 6, 3, dtype=torch.float64)
    mask = padding_mask().flip(1)
    output, state = layer(x, padding_mask=mask)
    for row, length in enumerate(LENGTHS.tolist()):
        alone, last = layer(x[row : row + 1, 6 - length :])
        assert equal(output[row, 6 - length :], alone[0]) and equal(state[0][row], last[0][0])


def test_bad_arguments():
    with pytest.raises(InputError, match="unknown unit 'rumm', choose one of .*gru.*rum"):
        RNN("rumm", 3, 5)
    with pytest.raises(InputError, match="lambda must be 0 or 1, got 2"):
        RUM(3, 5, lambda_=2)
    with pytest.raises(InputError, match="eta must be positive, got 0"):
        RUM(3, 5, eta=0.0)
    with pytest.raises(InputError, match="unknown activation 'gelu'"):
        RUM(3, 5, activation="gelu")
    with pytest.raises(InputError, match="unit 'lstm' has no option 'lambda_'"):
        RNN("lstm", 3, 5, lambda_=1)
    with pytest.raises(InputError, match="--rnn-backend: unknown 'fast'"):
        RUM(3, 5, backend="fast")
    with pytest.raises(InputError, match="--rnn-backend triton: unit 'lstm' has none"):
        RNN("lstm", 3, 5, backend="triton")
    with pytest.raises(ValueError, match="num_layers must be at least 1"):
        RUM(3, 5, 0)
    with pytest.raises(ValueError, match="dropout"):
        StackedRecurrent(lambda size: build_cell("rum", size, 5), 3, dropout=1.5)
    rum = RUM(3, 5, lambda_=1)
    with pytest.raises(ValueError, match="3 features, got shape .2, 2, 4."):
        rum(torch.randn(2, 2, 4))
    with pytest.raises(ValueError, match="a hidden state of 2 tensors .h, R., got 1"):
        rum(torch.randn(2, 2, 3), torch.zeros(1, 2, 5))
    with pytest.raises(ValueError, match="hidden state R of shape .1, 2, 5, 5."):
        rum(torch.randn(2, 2, 3), (torch.zeros(1, 2, 5), torch.zeros(1, 2, 5)))


def test_without_fairseq():
    """The layers run in a program that has no fairseq; what needs it says so in one sentence."""
    program = """
import sys
sys.modules["fairseq"] = None
import torch
from fairseq_rum.layers import RUM
from fairseq_rum.functional import rotate
print(RUM(3, 5, lambda_=1)(torch.randn(2, 3))[0].shape)
assert not any(name.startswith(("hydra", "omegaconf")) for name in sys.modules)
import fairseq_rum.models
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    assert result.stdout.strip() == "torch.Size([2, 5])"
    assert result.stderr.splitlines()[-1].startswith("ImportError: fairseq is not installed")
