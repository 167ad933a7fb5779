"""Vectors of sentences, and attention to them: against loops over single words and sentences."""

import math

import pytest
import torch

from fairseq_rum.functional import rotation
from fairseq_rum.modules.sentence_attention import ATTENTIONS, SentenceAttention
from fairseq_rum.modules.sentence_embedding import SENTENCE_EMBEDDINGS, embed_sentences

PAD, EOS = 1, 2
STORIES = [
    [[5, 6, 7], [8], [9, 9, 4, 3, 10]],
    [[4, 4]],
    [[3], [], [10, 9]],
]
"""Words of the sentences of three examples; one sentence is empty."""


def tokens_of(stories, width=None):
    rows = [[token for sentence in story for token in (*sentence, EOS)] for story in stories]
    width = width or max(map(len, rows))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


def by_hand(sentence, weight, how):
    """The equations, a word at a time."""
    d, count = weight.shape[1], len(sentence)
    total = torch.zeros(d, dtype=weight.dtype)
    for j, word in enumerate(sentence, 1):
        if how == "position":
            k = torch.arange(1, d + 1, dtype=weight.dtype)
            factor = (1 - j / count) - k / d * (1 - 2 * j / count)
        else:
            factor = 1 / count if how == "mean" else 1
        total = total + factor * weight[word]
    return total


@pytest.mark.parametrize("how", SENTENCE_EMBEDDINGS)
def test_embeddings(how):
    weight = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
    x, counts = embed_sentences(tokens_of(STORIES), weight, PAD, EOS, how)
    assert counts.tolist() == [3, 1, 3] and x.shape == (3, 3, 5)
    expected = torch.zeros_like(x)
    for b, story in enumerate(STORIES):
        for s, sentence in enumerate(story):
            expected[b, s] = by_hand(sentence, weight.detach(), how)
    torch.testing.assert_close(x, expected, rtol=1e-12, atol=1e-12)
    assert (x[1, 1:] == 0).all() and (x[2, 1] == 0).all()
    assert torch.autograd.gradcheck(
        lambda w: embed_sentences(tokens_of(STORIES), w, PAD, EOS, how)[0], weight
    )
    wider, _ = embed_sentences(tokens_of(STORIES, 30), weight, PAD, EOS, how)
    assert torch.equal(wider, x), "padding has no effect"


def test_position_encoding_alone_knows_the_order_of_words():
    weight = torch.randn(11, 4)
    for how in SENTENCE_EMBEDDINGS:
        first, second = (
            embed_sentences(tokens_of([[words]]), weight, PAD, EOS, how)[0]
            for words in ([5, 6, 7], [7, 6, 5])
        )
        assert torch.allclose(first, second) == (how != "position")


def test_unknown_names():
    with pytest.raises(ValueError, match="unknown 'max', choose one of mean, sum, position"):
        embed_sentences(tokens_of(STORIES), torch.ones(11, 2), PAD, EOS, "max")
    with pytest.raises(ValueError, match="unknown attention 'hard', choose one of dot, general"):
        SentenceAttention("hard", 4, 3)


def inputs(batch=3, sentences=4, n=5, embed=3):
    """Numbers of sentences 4, 0 and 1, in float64."""
    query, states = torch.randn(batch, n), torch.randn(batch, sentences, n)
    is_sentence = torch.arange(sentences) < torch.tensor([sentences, 0, 1]).unsqueeze(1)
    return query.double(), states.double(), is_sentence, torch.randn(batch, embed).double()


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_attention(kind):
    module = SentenceAttention(kind, 5, 3).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter))
    query, states, is_sentence, question = inputs()
    result, weights = module(query, states, is_sentence, question)
    assert result.shape == (3, module.output_size)
    for b in range(3):
        q, h = query[b], states[b, : int(is_sentence[b].sum())]
        key = q if kind != "general" else module.weight.t() @ q
        exponents = [math.exp((key @ state).item()) for state in h]
        alphas = torch.tensor([e / sum(exponents) for e in exponents], dtype=torch.float64)
        context = (alphas.unsqueeze(1) * h).sum(0)
        if kind == "rotation":
            expected = rotation(module.embed_question(question[b]), context) @ q
        else:
            expected = torch.cat((context, q))
        torch.testing.assert_close(result[b], expected, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(weights[b, : len(h)], alphas, rtol=1e-10, atol=1e-10)
        assert (weights[b, len(h) :] == 0).all()


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_gradients_and_padding(kind):
    module = SentenceAttention(kind, 5, 3).double()
    query, states, is_sentence, question = inputs()
    result, _ = module(query, states, is_sentence, question)
    other = states.masked_fill(~is_sentence.unsqueeze(-1), 7.0)
    assert torch.equal(module(query, other, is_sentence, question)[0], result)
    # A question without a sentence has no direction to turn to: its gradient there is a convention.
    rows = [0, 2]
    for tensor in (query, states, question):
        tensor.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda q, h, x: module(q[rows], h[rows], is_sentence[rows], x[rows])[0],
        (query, states, question),
    )


def test_without_any_sentence():
    query, states, is_sentence, question = inputs()
    for kind in ATTENTIONS:
        module = SentenceAttention(kind, 5, 3).double()
        for mask, h in ((is_sentence[1:2], states[1:2]), (is_sentence[1:2, :0], states[1:2, :0])):
            result, weights = module(query[1:2], h, mask, question[1:2])
            assert (weights == 0).all()
            assert torch.equal(result[:, -5:], query[1:2])
            assert (result[:, :-5] == 0).all()


def test_rotation_keeps_the_norm_and_general_begins_as_dot():
    query, states, is_sentence, question = inputs()
    turned, _ = SentenceAttention("rotation", 5, 3).double()(query, states, is_sentence, question)
    torch.testing.assert_close(turned.norm(dim=1), query.norm(dim=1))
    assert not torch.allclose(turned[0], query[0])
    dot, general = (
        SentenceAttention(kind, 5, 3).double()(query, states, is_sentence, question)[0]
        for kind in ("dot", "general")
    )
    torch.testing.assert_close(dot, general)
