"""pointer_gen_rum and pointer_coverage_loss: invariants in float64, and fairseq's stock task."""

import logging
import math
import re

import pytest
import torch
from conftest import USER_DIR, run_fairseq
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from summary_corpus import (
    build_model,
    build_task,
    make_pairs,
    prepare,
    preprocess,
    train_arguments,
)

from fairseq_rum.cells import registered_cells
from fairseq_rum.criterions import PointerCoverageLoss
from fairseq_rum.errors import InputError
from fairseq_rum.models import pointer_decoder

UNITS = [
    {"decoder_rnn_unit": "lstm"},
    {"decoder_rnn_unit": "rum", "coverage": True},
    {"decoder_rnn_unit": "rum", "rum_lambda": 1, "coverage": True},
    {"encoder_rnn_unit": "rum", "decoder_rnn_unit": "gru"},
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data directory with markers."""
    return prepare(tmp_path_factory.mktemp("marked"), make_pairs(12), "--vocabulary", 20)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A data directory without markers."""
    return preprocess(tmp_path_factory.mktemp("plain"), make_pairs(12))


def enlarge(model, seed=1):
    """Weights with which attention, p_gen and softmax are far from even, in float64."""
    generator = torch.Generator().manual_seed(seed)
    model = model.double().eval()
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data.add_(0.4 * noise)
    model.encoder.embed_tokens.weight.data[model.encoder.padding_idx] = 0.0
    return model


def model_of(data, seed=1, **options):
    task = build_task(data)
    return task.source_dictionary, enlarge(build_model(task, **options), seed)


def batch(dictionary, left=False):
    """Three sources of different lengths and different numbers of unknown words."""
    marked = [i for i, s in enumerate(dictionary.symbols) if s.startswith("<unk-")]
    rows = [
        [5, marked[1], 7, 8, marked[4], marked[1], 9, 2],
        [6, 6, 10, marked[3], 2],
        [7, 8, 2],
    ]
    longest = max(map(len, rows))
    padded = [[1] * (longest - len(r)) + r if left else r + [1] * (longest - len(r)) for r in rows]
    return torch.tensor(padded), rows


def full(model, source, tokens):
    logits, extra = model(source, None, tokens)
    return model.get_normalized_probs((logits, extra), log_probs=True), extra


# --- the model ------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", UNITS)
@pytest.mark.parametrize("left", [False, True])
def test_full_pass_is_stepwise_pass_and_survives_reordering(data, extra, left):
    """Logits, attention, p_gen and coverage, from the first step on."""
    dictionary, model = model_of(data, **extra)
    source, _ = batch(dictionary, left)
    tokens = torch.randint(4, len(dictionary), (3, 7))
    tokens[:, 0] = dictionary.eos()
    order = torch.tensor([1, 1, 2, 0])
    encoder_out, incremental = model.encoder(source), {}
    for t in range(7):
        if t == 4:
            model.decoder.reorder_incremental_state_scripting(incremental, order)
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
            source, tokens = source[order], torch.cat([tokens[order, :4], tokens[order, 4:]], 1)
            tokens[:, 4:] = torch.randint(4, len(dictionary), (4, 3))
        step, extra_step = model.decoder(tokens[:, : t + 1], encoder_out, incremental)
        assert step.shape[1] == 1
        log_probs, extra_full = full(model, source, tokens)
        found = model.get_normalized_probs((step, extra_step), log_probs=True)
        assert (found[:, 0] - log_probs[:, t]).abs().max() < 1e-11
        for key in ("attn", "gate"):
            a, b = extra_step[key], extra_full[key]
            a, b = (a[0], b[0]) if key == "attn" else (a, b)
            assert (a[:, 0] - b[:, t]).abs().max() < 1e-12
        if model.decoder.coverage:
            (cached,) = incremental.values()
            expected = extra_full["attn"][0][:, : t + 1].sum(1)
            assert (cached["coverage"] - expected).abs().max() < 1e-12


@pytest.mark.parametrize("extra", UNITS)
def test_a_batch_is_its_rows(data, extra):
    """Padding, and the unknown words of other rows, change nothing."""
    dictionary, model = model_of(data, **extra)
    source, rows = batch(dictionary)
    tokens = torch.randint(4, len(dictionary), (3, 5))
    log_probs, info = full(model, source, tokens)
    for i, row in enumerate(rows):
        one, one_info = full(model, torch.tensor([row]), tokens[i : i + 1])
        assert (one[0] - log_probs[i]).abs().max() < 1e-11
        attention = info["attn"][0][i]
        assert (one_info["attn"][0][0] - attention[:, : len(row)]).abs().max() < 1e-12
        assert not attention[:, len(row) :].any()
    assert (log_probs.exp().sum(-1) - 1).abs().max() < 1e-12


@pytest.mark.parametrize("width", [0, 4])
def test_sources_without_a_word(data, width):
    """Nothing to attend to, nothing to copy: P(w) is the softmax."""
    dictionary, model = model_of(data, coverage=True)
    source = torch.full((2, width), dictionary.pad())
    tokens = torch.randint(4, 20, (2, 3), generator=torch.Generator().manual_seed(0))
    logits, extra = model.train()(source, None, tokens)
    probs = model.get_normalized_probs((logits, extra), log_probs=False)
    softmax = logits.softmax(-1)
    assert (probs[..., : softmax.shape[-1]] - softmax).abs().max() < 1e-12
    model(source, None, tokens, target=tokens)[0].sum().backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.isfinite(grad).all() for grad in grads)


def test_target_log_probs_are_those_of_the_mixture(data, monkeypatch):
    """With the softmax computed at once and in pieces; gradients too; zero where padded."""
    dictionary, model = model_of(data, coverage=True)
    source, _ = batch(dictionary)
    target = torch.tensor(
        [[5, int(source[0, 1]), 9, 2], [int(source[0, 4]), 3, 2, 1], [8, 2, 1, 1]]
    )
    log_probs, _ = full(model, source, target)
    expected = log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    results = []
    for elements in (1 << 26, 60):
        monkeypatch.setattr(pointer_decoder, "_SOFTMAX_ELEMENTS", elements)
        model.zero_grad()
        found, _ = model(source, None, target, target=target)
        found.sum().backward()
        results.append([p.grad.clone() for p in model.parameters()])
        is_target = target.ne(1)
        is_copyable = expected > -60  # one target is a marker that its row has not
        assert (found - expected)[is_target & is_copyable].abs().max() < 1e-11
        assert found[1, 0] < -60 and not found[~is_target].any()
    assert all((a - b).abs().max() < 1e-11 for a, b in zip(*results))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(data, dtype):
    dictionary, model = model_of(data, coverage=True, rum_lambda=1)
    model = model.to(dtype).train()
    source, _ = batch(dictionary)
    target = torch.tensor([[5, int(source[0, 1]), 2], [9, 3, 2], [8, 2, 1]])
    log_probs, extra = full(model, source, target)
    assert log_probs.dtype == torch.float32 and torch.isfinite(log_probs).all()
    assert (log_probs.exp().sum(-1) - 1).abs().max() < 1e-3
    found, _ = model(source, None, target, target=target)
    found.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("unit", registered_cells())
def test_any_unit_on_either_side(data, unit):
    for side, other in (("encoder", "decoder"), ("decoder", "encoder")):
        options = {f"{side}_rnn_unit": unit, f"{other}_rnn_unit": "gru"}
        dictionary, model = model_of(data, **options)
        source, _ = batch(dictionary)
        target = torch.randint(4, 20, (3, 4))
        log_probs, _ = model.train()(source, None, target, target=target)
        log_probs.sum().backward()
        grads = {name: p.grad for name, p in model.named_parameters()}
        # A unit's own trained start has no part in a decoder, which starts from the encoder.
        without = [name for name, grad in grads.items() if grad is None]
        assert all(name.startswith("decoder.unit.") for name in without), without
        assert all(torch.isfinite(grad).all() for grad in grads.values() if grad is not None)


def test_embeddings_are_shared_and_unknown_words_outside_the_softmax(data):
    task = build_task(data)
    model = build_model(task)
    markers = sum(s.startswith("<unk-") for s in task.source_dictionary.symbols)
    assert markers == 400
    vocabulary = len(task.source_dictionary) - markers
    assert model.encoder.embed_tokens is model.decoder.embed_tokens
    assert model.decoder.output_projection.out_features == vocabulary
    assert model.encoder.embed_tokens.num_embeddings == vocabulary


# --- beam search ----------------------------------------------------------------------------------


def generate(models, dictionary, source, **options):
    generator = SequenceGenerator(models, dictionary, beam_size=4, max_len_b=9, **options)
    sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(1).sum(1)}}
    return generator.generate(models, sample)


@pytest.mark.parametrize("extra", UNITS)
def test_beam_search_is_rescored_and_batched_as_one_by_one(data, extra):
    """Each hypothesis has the probability that a full pass gives it, whatever was reordered."""
    dictionary, model = model_of(data, **extra)
    source, rows = batch(dictionary)
    hypotheses = generate([model], dictionary, source, min_len=3, no_repeat_ngram_size=3)
    ended_otherwise = set()
    for i, row in enumerate(rows):
        alone = generate(
            [model], dictionary, torch.tensor([row]), min_len=3, no_repeat_ngram_size=3
        )[0]
        assert [h["tokens"].tolist() for h in alone] == [
            h["tokens"].tolist() for h in hypotheses[i]
        ]
        for hypothesis in hypotheses[i]:
            tokens = hypothesis["tokens"].unsqueeze(0)
            previous = torch.cat([tokens[:, -1:], tokens[:, :-1]], 1)
            log_probs, info = full(model, torch.tensor([row]), previous)
            expected = log_probs.gather(-1, tokens.unsqueeze(-1)).flatten()
            assert (hypothesis["positional_scores"] - expected).abs().max() < 1e-4  # kept in fp32
            attention = hypothesis["attention"].t()[:, : len(row)]
            assert (attention - info["attn"][0][0]).abs().max() < 1e-5
            ended_otherwise.add(tuple(tokens[0].tolist()))
    assert len(ended_otherwise) > 6


def test_ensemble_averages_the_mixtures(data):
    dictionary, first = model_of(data, coverage=True, seed=1)
    _, second = model_of(data, decoder_rnn_unit="lstm", seed=2)
    source, rows = batch(dictionary)
    for i, hypotheses in enumerate(generate([first, second], dictionary, source)):
        tokens = hypotheses[0]["tokens"].unsqueeze(0)
        previous = torch.cat([tokens[:, -1:], tokens[:, :-1]], 1)
        probs = [full(m, torch.tensor([rows[i]]), previous)[0].exp() for m in (first, second)]
        expected = (sum(probs) / 2).log().gather(-1, tokens.unsqueeze(-1)).flatten()
        assert (hypotheses[0]["positional_scores"] - expected).abs().max() < 1e-4


def test_temperature_divides_the_logits(data):
    dictionary, model = model_of(data)
    source, rows = batch(dictionary)
    (hypothesis,) = generate([model], dictionary, source[:1, : len(rows[0])], temperature=3.0)[0][
        :1
    ]
    tokens = hypothesis["tokens"].unsqueeze(0)
    previous = torch.cat([tokens[:, -1:], tokens[:, :-1]], 1)
    logits, extra = model(torch.tensor(rows[:1]), None, previous)
    log_probs = model.get_normalized_probs((logits / 3.0, extra), log_probs=True)
    expected = log_probs.gather(-1, tokens.unsqueeze(-1)).flatten()
    assert (hypothesis["positional_scores"] - expected).abs().max() < 1e-4


# --- the loss -------------------------------------------------------------------------------------


def test_loss_by_hand(data):
    """Mean over the steps of an example, then over the examples; coverage likewise."""
    task = build_task(data)
    model, criterion = enlarge(build_model(task, coverage=True)), PointerCoverageLoss(task, 0.5)
    source, rows = batch(task.source_dictionary)
    target = torch.tensor([[5, int(source[0, 1]), 9, 2], [6, 9, 2, 1], [8, 2, 1, 1]])
    previous = torch.cat([torch.full((3, 1), 2), target[:, :-1]], 1)
    sample = {
        "net_input": {"src_tokens": source, "src_lengths": None, "prev_output_tokens": previous},
        "target": target,
        "ntokens": 9,
    }
    loss, size, log = criterion(model, sample)
    log_probs, info = full(model, source, previous)
    nll, covering = 0.0, 0.0
    for b, length in enumerate((4, 3, 2)):
        coverage = [0.0] * source.shape[1]
        steps = 0.0
        for t in range(length):
            attention = info["attn"][0][b, t].tolist()
            steps += sum(map(min, attention, coverage))
            coverage = [c + a for c, a in zip(coverage, attention)]
        covering += steps / length
        nll -= sum(log_probs[b, t, target[b, t]].item() for t in range(length)) / length
    assert size == 3
    assert loss.item() == pytest.approx(nll + 0.5 * covering, abs=1e-9)
    assert log["coverage_loss"].item() == pytest.approx(covering, abs=1e-12)
    p_gen = torch.sigmoid(info["gate"])
    assert log["copied"].item() == pytest.approx((1 - p_gen)[target.ne(1)].sum().item())


def test_other_criterions_take_the_mixture(data):
    """fairseq's cross_entropy: the same numbers by way of all probabilities."""
    task = build_task(data)
    model = build_model(task)
    ours, theirs = PointerCoverageLoss(task, 1.0), CrossEntropyCriterion(task, False)
    task.load_dataset("train")
    batches = task.get_batch_iterator(task.dataset("train"), max_sentences=12)
    (sample,) = list(batches.next_epoch_itr(shuffle=False))
    nll = ours(model, sample)[2]["nll_loss"].item()
    assert theirs(model, sample)[0].item() == pytest.approx(nll, rel=1e-5)


# --- fairseq's commands ---------------------------------------------------------------------------


def values(caplog, name, logger="train_inner"):
    """All values of a metric that fairseq printed."""
    messages = " ".join(r.getMessage() for r in caplog.records if r.name == logger)
    return [float(value) for value in re.findall(rf"\b{name}[= ]([-+.e\d]+)", messages)]


def test_stock_translation_trains_and_generates(plain, tmp_path, capsys, caplog):
    """A plain dictionary: known words are copied; the same losses for the same seed."""
    caplog.set_level(logging.INFO)
    losses = []
    for run in ("first", "second"):
        caplog.clear()
        arguments = train_arguments(plain, tmp_path / run, "--max-update", 20, task="translation")
        run_fairseq("train", *arguments)
        losses.append(values(caplog, "loss"))
    assert len(losses[0]) == 20 and losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]
    saved = [
        torch.load(tmp_path / run / "checkpoint_last.pt", weights_only=True)["model"]
        for run in ("first", "second")
    ]
    assert all(torch.equal(saved[0][k], saved[1][k]) for k in saved[0])
    run_fairseq(
        "generate", plain, "--user-dir", USER_DIR, "--task", "translation", "--path",
        tmp_path / "first" / "checkpoint_last.pt", "--gen-subset", "valid", "--beam", 4, "--cpu",
        "--batch-size", 5, "--required-batch-size-multiple", 1, "--max-len-b", 8, "--min-len", 2,
        "--print-alignment", "--num-workers", 0,
    )  # fmt: skip
    out = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("H-") for line in out) == 12
    alignments = [line.split("\t")[1].split() for line in out if line.startswith("A-")]
    lengths = [len(line.split("\t")[2].split()) for line in out if line.startswith("H-")]
    assert [len(a) for a in alignments] == lengths, "a place in the source for each word"


def test_two_stages(data, tmp_path, caplog):
    """Coverage joins a trained model: w_c is new, the optimizer starts anew, and both are said."""
    caplog.set_level(logging.INFO)
    common = ["--max-update", 2, "--disable-validation"]
    run_fairseq("train", *train_arguments(data, tmp_path / "one", *common))
    assert "from the first update" not in caplog.text
    first = tmp_path / "one" / "checkpoint_last.pt"
    caplog.clear()
    run_fairseq(
        "train", *train_arguments(data, tmp_path / "two", "--coverage", "--max-update", 1,
        "--disable-validation", "--lr", 1e-9, "--finetune-from-model", first),
    )  # fmt: skip
    assert "its weight w_c is new" in caplog.text
    assert "optimizer, lr scheduler, meters, dataloader will be reset" in caplog.text
    assert "from the first update" not in caplog.text
    assert values(caplog, "coverage_loss")
    before = torch.load(first, weights_only=True)
    after = torch.load(tmp_path / "two" / "checkpoint_last.pt", weights_only=True)
    assert set(after["model"]) - set(before["model"]) == {"decoder.attention.w_c"}
    for name, value in before["model"].items():
        assert (after["model"][name] - value).abs().max() < 1e-6
    assert after["optimizer_history"][-1]["num_updates"] == 1
    with pytest.raises(InputError, match="add --reset-optimizer, or .* --finetune-from-model"):
        run_fairseq("train", *train_arguments(data, tmp_path / "one", *common, "--coverage"))
    caplog.clear()
    with pytest.raises(Exception, match="Cannot load model") as error:
        run_fairseq(
            "train", *train_arguments(data, tmp_path / "three", *common, "--finetune-from-model",
            tmp_path / "two" / "checkpoint_last.pt"),
        )  # fmt: skip
    assert "trained with coverage: add --coverage" in str(error.value.__context__)


def test_coverage_from_the_first_update_warns_once(data, tmp_path, caplog):
    common = ["--max-update", 3, "--disable-validation", "--coverage"]
    run_fairseq("train", *train_arguments(data, tmp_path, *common))
    assert caplog.text.count("--coverage from the first update") == 1
    caplog.clear()
    run_fairseq("train", *train_arguments(data, tmp_path, *common[2:], "--max-update", 4))
    assert "from the first update" not in caplog.text, "a resumed run"


@pytest.mark.parametrize(
    "options, message",
    [
        ({"encoder_rnn_unit": "lsmt"}, "--encoder-rnn-unit: unknown unit 'lsmt'"),
        ({"decoder_rnn_unit": "lsmt"}, "--decoder-rnn-unit: unknown unit 'lsmt'"),
        ({"gru_layer_norm": True}, "--gru-layer-norm is an option of unit 'gru'"),
        ({"rum_eta": -1.0}, "eta must be positive"),
        ({"embed_dim": 0}, "--embed-dim must be at least 1, got 0"),
        ({"decoder_hidden_size": -3}, "--decoder-hidden-size must be at least 1"),
        ({"rnn_backend": "cpp"}, "unit 'lstm' has none"),
    ],
)
def test_bad_options(data, options, message):
    with pytest.raises(InputError, match=message):
        build_model(build_task(data), **options)


def test_bad_weight(data, tmp_path):
    command = train_arguments(data, tmp_path, "--coverage-loss-weight", -1, "--max-update", 1)
    with pytest.raises(InputError, match="--coverage-loss-weight must be at least 0, got -1"):
        run_fairseq("train", *command)


def test_what_copying_needs(plain, tmp_path):
    def build(data, **options):
        names = {"source_lang": "source", "target_lang": "target"}
        cfg = TranslationConfig(data=str(data), **names, **options)
        build_model(TranslationTask.setup_task(cfg))

    with pytest.raises(InputError, match="--left-pad-target"):
        build(plain, left_pad_target=True)
    for side in ("source", "target"):
        (tmp_path / f"dict.{side}.txt").write_text(f"a 1\n{side} 1\n")
    with pytest.raises(InputError, match="--joined-dictionary"):
        build(tmp_path)
    for side in ("source", "target"):
        (tmp_path / f"dict.{side}.txt").write_text("a 1\n<unk-0> 0\n<unk-2> 0\n")
    with pytest.raises(InputError, match="markers are not <unk-0> to <unk-2> in a row"):
        build(tmp_path)


def test_the_criterion_needs_the_model(data):
    sample = {"target": torch.tensor([[2]]), "net_input": {}}
    with pytest.raises(InputError, match="needs --arch pointer_gen_rum"):
        PointerCoverageLoss(build_task(data), 1.0)(torch.nn.Linear(2, 2), sample)


def test_the_criterion_knows_the_model_inside_wrappers(data):
    """fairseq's data-parallel training wraps a model twice."""
    from fairseq.distributed import ModuleProxyWrapper

    class Parallel(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module
            self.forward = module.forward

    task = build_task(data)
    model = enlarge(build_model(task))
    source, _ = batch(task.source_dictionary)
    target = torch.tensor([[5, 2], [6, 2], [8, 2]])
    sample = {
        "net_input": {"src_tokens": source, "src_lengths": None, "prev_output_tokens": target},
        "target": target,
        "ntokens": 6,
    }
    criterion = PointerCoverageLoss(task, 1.0)
    loss = criterion(ModuleProxyWrapper(Parallel(model)), sample)[0]
    assert torch.equal(loss, criterion(model, sample)[0])


def test_start_is_the_original_codes(data):
    """Standard deviations and bounds of a model of some size; RUM orthogonal."""
    model = build_model(build_task(data), embed_dim=64)
    decoder, n = model.decoder, 14
    for weight in (decoder.output_projection.weight, decoder.bridge.maps["h_from_h"].weight):
        assert 0 < weight.abs().max() <= 2e-4
    assert 0 < model.encoder.embed_tokens.weight.abs().max() <= 2e-4
    assert not model.encoder.embed_tokens.weight[1].any()
    lstm = model.encoder.unit
    assert lstm.weight_ih.abs().max() <= 0.02 and lstm.weight_hh.abs().max() <= 0.02
    block = decoder.unit.weight_hh[:n]
    assert (block @ block.t() - torch.eye(n)).abs().max() < 1e-5
    bound = math.sqrt(6 / (2 * 24))
    assert 0.9 * bound < model.encoder.project_memory.weight.abs().max() <= bound
