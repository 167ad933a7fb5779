"""Attention, mixture and state bridge of the pointer-generator network, each by itself."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from fairseq_rum.cells import build_cell, registered_cells
from fairseq_rum.modules import attention_energies
from fairseq_rum.modules.coverage_attention import (
    CoverageAttention,
    coverage_before,
    coverage_penalty,
)
from fairseq_rum.modules.initialization import truncated_normal_, uniform_units_
from fairseq_rum.modules.marker_embedding import MarkerEmbedding
from fairseq_rum.modules.pointer_mixture import SMALLEST, mixture_log_probs, target_log_probs
from fairseq_rum.modules.state_bridge import StateBridge, join_vectors, vector_parts

DOUBLE = torch.float64


def attention_inputs(batch=3, places=5, size=4, query_size=6, dtype=DOUBLE):
    memory = torch.randn(batch, places, size, dtype=dtype)
    features = torch.randn(batch, places, size, dtype=dtype)
    query = torch.randn(batch, query_size, dtype=dtype)
    return query, memory, features


# --- attention ------------------------------------------------------------------------------------


def test_attention_is_the_papers_equation():
    """One number at a time in Python."""
    attention = CoverageAttention(4, 6, coverage=True).double()
    query, memory, features = attention_inputs()
    mask = torch.zeros(3, 5, dtype=torch.bool)
    mask[1, 3:] = True
    coverage = torch.rand(3, 5, dtype=DOUBLE)
    context, weights = attention(query, memory, features, mask, coverage)
    projected = query @ attention.project_query.weight.t() + attention.project_query.bias
    v, w_c = attention.v.tolist(), attention.w_c.tolist()
    for b in range(3):
        energies = []
        for i in range(5):
            if not mask[b, i]:
                sums = (features[b, i] + projected[b]).tolist()
                c = coverage[b, i].item()
                energies.append(sum(v[k] * math.tanh(sums[k] + c * w_c[k]) for k in range(4)))
        total = sum(math.exp(e) for e in energies)
        expected = [math.exp(e) / total for e in energies] + [0.0] * int(mask[b].sum())
        assert weights[b].tolist() == pytest.approx(expected, abs=1e-12)
        summed = sum(weights[b, i] * memory[b, i] for i in range(5))
        assert (context[b] - summed).abs().max() < 1e-12


def test_coverage_of_three_steps_by_hand():
    """See et al.'s coverage and its loss: step 1 finds none, step 3 the sum of 1 and 2."""
    attention = torch.tensor([[[0.5, 0.25, 0.25], [0.5, 0.5, 0.0], [0.25, 0.25, 0.5]]])
    expected = torch.tensor([[[0.0, 0.0, 0.0], [0.5, 0.25, 0.25], [1.0, 0.75, 0.25]]])
    assert torch.equal(coverage_before(attention), expected)
    # min: 0; 0.5 + 0.25 + 0; 0.25 + 0.25 + 0.25
    assert torch.equal(coverage_penalty(attention), torch.tensor([[0.0, 0.75, 0.75]]))


def test_coverage_changes_the_attention_and_only_with_the_flag():
    query, memory, features = attention_inputs()
    with_coverage = CoverageAttention(4, 6, coverage=True).double()
    without = CoverageAttention(4, 6).double()
    without.load_state_dict(with_coverage.state_dict(), strict=False)
    none = torch.zeros(3, 5, dtype=DOUBLE)
    some = torch.rand(3, 5, dtype=DOUBLE)
    plain = without(query, memory, features)[1]
    assert torch.equal(with_coverage(query, memory, features, None, none)[1], plain)
    assert not torch.allclose(with_coverage(query, memory, features, None, some)[1], plain)
    assert "w_c" not in without.state_dict()


def test_attention_gradients():
    attention = CoverageAttention(4, 6, coverage=True).double()
    query, memory, features = attention_inputs(batch=2, places=3)
    coverage = torch.rand(2, 3, dtype=DOUBLE)
    mask = torch.tensor([[False, False, True], [True, True, True]])
    for tensor in (query, memory, features, coverage):
        tensor.requires_grad_()

    def run(query, memory, features, coverage):
        return attention(query, memory, features, mask, coverage)

    assert gradcheck(run, (query, memory, features, coverage))


@pytest.mark.parametrize("dtype, tolerance", [(DOUBLE, 1e-13), (torch.float32, 1e-5)])
@pytest.mark.parametrize("with_coverage", [False, True])
@pytest.mark.parametrize("piece", [1, 40, 1 << 18])
def test_energies_are_the_naive_ones(monkeypatch, dtype, tolerance, with_coverage, piece):
    """Values and all gradients, in pieces of a row, of two rows, and at once."""
    monkeypatch.setattr(attention_energies, "_PIECE", piece)
    inputs = [torch.randn(5, 3, 6), torch.randn(5, 6), torch.randn(6)]
    if with_coverage:
        inputs += [torch.randn(6), torch.rand(5, 3)]
    inputs = [x.to(dtype).requires_grad_() for x in inputs]
    weights = torch.randn(5, 3, dtype=dtype)
    results = []
    for function in (attention_energies.energies, attention_energies.naive_energies):
        found = function(*inputs)
        results.append([found, *torch.autograd.grad((found * weights).sum(), inputs)])
    for a, b in zip(*results):
        assert a.dtype == dtype and (a - b).abs().max() < tolerance


def test_second_derivative_of_energies_is_refused():
    inputs = [torch.randn(5, 3, 6, requires_grad=True), torch.randn(5, 6), torch.randn(6)]
    energies = attention_energies.energies(*inputs)
    (gradient,) = torch.autograd.grad(energies.sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="naive_energies"):
        gradient.square().sum().backward()


def test_a_row_without_any_place():
    attention = CoverageAttention(4, 6)
    query, memory, features = attention_inputs(dtype=torch.float32)
    mask = torch.zeros(3, 5, dtype=torch.bool)
    mask[1] = True
    features.requires_grad_()
    context, weights = attention(query, memory, features, mask)
    assert torch.equal(weights[1], torch.zeros(5)) and torch.equal(context[1], torch.zeros(4))
    assert weights[0].sum().item() == pytest.approx(1.0)
    (context.sum() + weights.pow(2).sum()).backward()
    assert torch.equal(features.grad[1], torch.zeros(5, 4))
    assert all(torch.isfinite(p.grad).all() for p in attention.parameters())


# --- mixture --------------------------------------------------------------------------------------

V, SIZE = 7, 12  # ids 7 to 11 are those of unknown words


def mixture_inputs(dtype=DOUBLE, requires_grad=False):
    """Two rows, of three unknown words and of one; an id occurs twice; the second row is short."""
    source = torch.tensor([[3, 7, 9, 7, 11, 3], [8, 4, 8, 5, 1, 1]])
    logits = torch.randn(2, 4, V, dtype=DOUBLE).to(dtype)
    gate = torch.randn(2, 4, dtype=DOUBLE).to(dtype)
    attention = torch.rand(2, 4, 6, dtype=DOUBLE)
    attention[1, :, 4:] = 0.0
    attention = (attention / attention.sum(-1, keepdim=True)).to(dtype)
    if requires_grad:
        for tensor in (logits, gate, attention):
            tensor.requires_grad_()
    return logits, gate, attention, source


def test_mixture_is_the_papers_sum_over_the_extended_vocabulary():
    logits, gate, attention, source = mixture_inputs()
    found = mixture_log_probs(logits, gate, attention, source, SIZE).exp()
    assert found.shape == (2, 4, SIZE)
    assert (found.sum(-1) - 1).abs().max() < 1e-12
    for b in range(2):
        for t in range(4):
            p_gen = torch.sigmoid(gate[b, t]).item()
            softmax = torch.softmax(logits[b, t], -1).tolist()
            for w in range(SIZE):
                copied = sum(attention[b, t, i].item() for i in range(6) if source[b, i] == w)
                expected = p_gen * (softmax[w] if w < V else 0) + (1 - p_gen) * copied
                assert found[b, t, w].item() == pytest.approx(expected, abs=1e-12)
    # A row has no probability for the unknown words of the other one.
    assert found[0, :, [8, 10]].max() <= SMALLEST * (1 + 1e-9)
    assert found[1, :, [7, 9, 10, 11]].max() <= SMALLEST * (1 + 1e-9)


def test_target_log_probs_are_the_mixtures():
    logits, gate, attention, source = mixture_inputs()
    whole = mixture_log_probs(logits, gate, attention, source, SIZE)
    target = torch.tensor([[3, 7, 0, 11], [8, 4, 6, 5]])
    vocabulary = logits.log_softmax(-1).gather(-1, target.clamp_max(V - 1).unsqueeze(-1))
    found = target_log_probs(vocabulary.squeeze(-1), gate, attention, source, target, V)
    expected = whole.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    assert (found - expected).abs().max() < 1e-12


def test_mixture_gradients():
    logits, gate, attention, source = mixture_inputs(requires_grad=True)
    assert gradcheck(
        lambda *x: mixture_log_probs(*x, source, SIZE)[..., :V], (logits, gate, attention)
    )
    target = torch.tensor([[3, 7, 0, 11], [8, 4, 6, 5]])
    vocabulary = torch.randn(2, 4, dtype=DOUBLE).sub(2).requires_grad_()
    assert gradcheck(
        lambda *x: target_log_probs(*x, source, target, V), (vocabulary, gate, attention)
    )


EXTREMES = [0.0, 1e4, -1e4, 6e4, -6e4]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", EXTREMES)
@pytest.mark.parametrize("source_is_empty", [False, True])
def test_logarithms_and_gradients_are_finite(dtype, value, source_is_empty):
    """p_gen exactly 0 or 1, softmax exactly 0 or 1, target that is nowhere, nothing to copy."""
    logits, gate, attention, source = mixture_inputs(dtype)
    gate = torch.full_like(gate, value)
    logits = torch.zeros_like(logits)
    logits[..., 0] = value
    if source_is_empty:
        attention = torch.zeros_like(attention)
    for tensor in (logits, gate, attention):
        tensor.requires_grad_()
    log_probs = mixture_log_probs(logits, gate, attention, source, SIZE)
    assert log_probs.dtype == (DOUBLE if dtype == DOUBLE else torch.float32)
    target = torch.tensor([[10, 0, 1, 7], [10, 0, 1, 8]])  # 10 is in no source
    vocabulary = logits.float().log_softmax(-1)
    vocabulary = vocabulary.gather(-1, target.clamp_max(V - 1).unsqueeze(-1)).squeeze(-1)
    picked = target_log_probs(vocabulary, gate, attention, source, target, V)
    for result in (log_probs, picked):
        assert torch.isfinite(result).all() and result.max() < 1e-5
        inputs = (logits, gate, attention)
        for grad in torch.autograd.grad(result.sum(), inputs, retain_graph=True):
            assert torch.isfinite(grad).all()


# --- state bridge ---------------------------------------------------------------------------------


def bridge(encoder, decoder, size=3, **options):
    encoder = build_cell(encoder, 2, 4)
    decoder = build_cell(decoder, 2, size, **options)
    module = StateBridge(encoder, decoder).double()
    final = {
        name: torch.randn(5, 2 * n, dtype=DOUBLE)
        for name, n in vector_parts(encoder.state_shapes).items()
    }
    return module, final, decoder


def relu(weights, x):
    return torch.relu(x @ weights.weight.t() + weights.bias)


def test_bridge_of_two_lstms_is_see_et_als():
    module, final, decoder = bridge("lstm", "lstm")
    h, c = module(list(final.values()), decoder.double().init_state(5))
    assert torch.equal(h, relu(module.maps["h_from_h"], final["h"]))
    assert torch.equal(c, relu(module.maps["c_from_c"], final["c"]))
    assert len(list(module.parameters())) == 4


def test_bridge_from_lstm_to_rum_uses_the_memory_cell_too():
    module, final, decoder = bridge("lstm", "rum", lambda_=1)
    h, memory = module(list(final.values()), decoder.double().init_state(5))
    parts = [relu(module.maps[f"h_from_{name}"], final[name]) for name in ("h", "c")]
    assert torch.equal(h, relu(module.joins["h"], torch.cat(parts, -1)))
    assert torch.equal(memory, torch.eye(3, dtype=DOUBLE).expand(5, 3, 3)), "R starts at I"


def test_bridge_from_rum_to_lstm_makes_both_from_h():
    module, final, decoder = bridge("rum", "lstm")
    h, c = module(list(final.values()), decoder.double().init_state(5))
    assert torch.equal(h, relu(module.maps["h_from_h"], final["h"]))
    assert torch.equal(c, relu(module.maps["c_from_h"], final["h"]))


@pytest.mark.parametrize("encoder", registered_cells())
@pytest.mark.parametrize("decoder", registered_cells())
def test_bridge_of_any_two_units(encoder, decoder):
    """Shapes, a batch of two = two batches of one, and every parameter has a gradient."""
    module, final, cell = bridge(encoder, decoder)
    for linear in module.maps.values():
        linear.bias.data.fill_(1.0)  # so that the relu is open
    state = module(list(final.values()), cell.double().init_state(5))
    for part, shape in zip(state, cell.state_shapes.values()):
        assert part.shape == (5, *shape)
    for row in range(5):
        one = module([v[row : row + 1] for v in final.values()], cell.init_state(1))
        for a, b in zip(one, state):
            assert (a[0] - b[row]).abs().max() < 1e-14
    sum(part.sum() for part in state).backward()
    assert all(p.grad is not None for p in module.parameters())
    assert join_vectors(cell, state).shape == (5, sum(vector_parts(cell.state_shapes).values()))


# --- embedding and initialization -----------------------------------------------------------------


def test_ids_beyond_the_vocabulary_have_the_vector_of_unk():
    embedding = MarkerEmbedding(6, 4, padding_idx=1, unk_idx=3)
    found = embedding(torch.tensor([[3, 6, 100], [1, 5, 7]]))
    assert torch.equal(found[0, 1], found[0, 0]) and torch.equal(found[0, 2], found[0, 0])
    assert torch.equal(found[1, 2], found[0, 0]) and not found[1, 0].any()
    found.sum().backward()
    assert torch.equal(embedding.weight.grad[:, 0], torch.tensor([0.0, 0, 0, 4, 0, 1]))


def test_initialization_is_the_original_codes():
    weight = torch.empty(300, 300)
    truncated_normal_(weight)
    assert weight.abs().max() <= 2e-4
    assert weight.std().item() == pytest.approx(0.88e-4, rel=0.01), "truncated at two deviations"
    cell = build_cell("lstm", 5, 64)
    uniform_units_(cell, 0.02)
    for name in ("weight_ih", "weight_hh"):
        weight = getattr(cell, name)
        assert 0.019 < weight.abs().max() <= 0.02
    bias = cell.bias_ih + cell.bias_hh
    assert torch.equal(bias[64:128], torch.ones(64)), "the forget gate"
    assert not bias[:64].any() and not bias[128:].any()
    cell = build_cell("rum", 5, 8)
    before = cell.weight_hh.clone()
    uniform_units_(cell, 0.02)
    assert torch.equal(cell.weight_hh, before), "RUM keeps its own start"
