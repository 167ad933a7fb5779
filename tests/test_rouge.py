"""``--scoring rouge`` and ``fairseq-rum score``: the same numbers, by hand and from rouge-score."""

import json

import numpy as np
import pytest
from conftest import USER_DIR, run_fairseq
from fairseq import scoring
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.scoring import BootstrapAggregator

import fairseq_rum  # noqa: F401
from fairseq_rum.cli.main import main
from fairseq_rum.data.generated import read_generated
from fairseq_rum.data.rouge import MEASURES, TYPES, Estimate, Rouge, bootstrap, score_corpus
from fairseq_rum.data.summary_statistics import mean_length, novel_ngrams, repeated_trigrams
from fairseq_rum.scoring.rouge import RougeScorerConfig

TEXTS = [
    ("the owls sat on the mat . they slept .", "an owl sat on a mat . it was asleep ."),
    ("the owls sat on the mat .", "on the mat sat the owls ."),
    ("a b c", "d e f"),
    ("A-b (C) d.", "a b c e"),
    ("x", ""),
    ("", "x"),
    ("naïve café", "naïve cafe"),
]
REFERENCES = [[reference] for reference, _ in TEXTS]
HYPOTHESES = [hypothesis for _, hypothesis in TEXTS]


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def of(rouge, references, hypothesis):
    """type -> F1, precision, recall."""
    return dict(zip(TYPES, rouge.of_pair(references, hypothesis).tolist()))


def test_by_hand():
    scores = of(Rouge(stem=False), ["a b c d . e f ."], "b c a d . f ; e .")
    assert scores["rouge1"] == [100, 100, 100]
    # Bigrams b c alone of ab bc cd de ef and of bc ca ad df fe.
    assert scores["rouge2"] == pytest.approx([20, 20, 20])
    # Longest common subsequence: b c d f (or e); by sentences b c d and f (or e).
    assert scores["rougeL"] == pytest.approx([100 * 4 / 6] * 3)
    assert scores["rougeLsum"] == pytest.approx([100 * 4 / 6] * 3)


def test_sentences_matter_to_rouge_lsum_alone():
    scores = of(Rouge(), ["a b . c d ."], "c d . a b .")
    assert scores["rougeL"] == pytest.approx([50, 50, 50])
    assert scores["rougeLsum"] == pytest.approx([100, 100, 100])


def test_stems():
    assert of(Rouge(), ["owls sleeping"], "owl sleeps")["rouge1"][0] == 100
    assert of(Rouge(stem=False), ["owls sleeping"], "owl sleeps")["rouge1"][0] == 0


@settings(max_examples=30, deadline=None)
@given(*[st.lists(st.sampled_from("a b owl owls . ( é".split()), max_size=12).map(" ".join)] * 2)
def test_numbers_are_those_of_rouge_score(reference, hypothesis):
    theirs = RougeScorer(list(TYPES)[:3], use_stemmer=True).score(reference, hypothesis)
    ours = of(Rouge(), [reference], hypothesis)
    for kind, score in theirs.items():
        expected = [100 * getattr(score, measure) for measure in MEASURES]
        assert ours[kind] == pytest.approx(expected)


def test_several_references():
    references = ["a b x", "a b c d", ""]
    best = of(Rouge(), references, "a b c")
    assert best["rouge1"] == pytest.approx([100 * 6 / 7, 100, 75])
    mean = of(Rouge(combine="mean"), references, "a b c")
    assert mean["rouge1"] == pytest.approx(
        [50 * (6 / 7 + 2 / 3), 50 * (5 / 3), 50 * (3 / 4 + 2 / 3)]
    )
    assert of(Rouge(), ["", " "], "a")["rouge1"] == [0, 0, 0]


def test_intervals_are_those_of_rouge_score():
    """Two seeds of the bootstrap differ by as much as theirs and ours do."""
    aggregator = BootstrapAggregator(n_samples=2000)
    scorer = RougeScorer(["rouge1"], use_stemmer=True)
    pairs = [(f"a b c d {'e' * (i % 3)}", " ".join("abcdfg"[: i % 7])) for i in range(60)]
    for pair in pairs:
        aggregator.add_scores(scorer.score(*pair))
    np.random.seed(1)
    theirs = aggregator.aggregate()["rouge1"]
    ours = score_corpus(Rouge(), [[r] for r, _ in pairs], [h for _, h in pairs], 2000)["rouge1"]
    for measure in MEASURES:
        low, high = (100 * getattr(bound, measure) for bound in (theirs.low, theirs.high))
        width = high - low
        assert ours[measure].low == pytest.approx(low, abs=0.1 * width)
        assert ours[measure].high == pytest.approx(high, abs=0.1 * width)


def test_bootstrap():
    values = np.random.default_rng(0).normal([0, 10], [1, 3], (400, 2))
    mean, low, high = bootstrap(values, samples=2000)
    assert np.allclose(mean, values.mean(axis=0))
    half = 1.96 * values.std(axis=0) / np.sqrt(400)
    assert np.allclose(mean - low, half, rtol=0.1) and np.allclose(high - mean, half, rtol=0.1)
    again = bootstrap(values, samples=2000)
    assert all(np.array_equal(a, b) for a, b in zip((mean, low, high), again))
    assert not np.array_equal(low, bootstrap(values, 2000, seed=2)[1])
    mean, low, high = bootstrap(values[:1])
    assert np.allclose(low, values[0]) and np.allclose(high, values[0])


def test_global_random_state_is_left_alone():
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    score_corpus(Rouge(), REFERENCES, HYPOTHESES)
    assert np.array_equal(before, np.random.get_state()[1])


def test_statistics_by_hand():
    texts, sources = ["A b. c d", "b b b b", ""], ["a b c e", "b b", "a"]
    # Unigrams: d of 8 is new. Bigrams: c d of 6. Trigrams: b c d and twice b b b of 4. Fours: all.
    expected = {1: 100 / 8, 2: 100 / 6, 3: 300 / 4, 4: 100.0}
    assert novel_ngrams(texts, sources) == pytest.approx(expected)
    assert repeated_trigrams(texts) == pytest.approx(25)
    assert mean_length(texts) == pytest.approx(8 / 3)
    assert novel_ngrams([""], ["a"]) == {1: 0, 2: 0, 3: 0, 4: 0}
    assert repeated_trigrams([]) == mean_length([]) == 0


def test_scorer_of_fairseq():
    scorer = scoring.build_scorer("rouge", None)
    assert scorer.score() == 0 and scorer.result_string() == "ROUGE: no summaries"
    for reference, hypothesis in TEXTS:
        scorer.add_string(reference, hypothesis)
    expected = score_corpus(Rouge(), REFERENCES, HYPOTHESES)
    assert scorer.score() == expected["rougeL"]["fmeasure"].mean
    numbers = ", ".join(f"{name} {expected[kind]['fmeasure']}" for kind, name in TYPES.items())
    assert scorer.result_string() == f"{numbers} (F1 and 95% interval, 7 summaries)"

    plain = fairseq_rum.scoring.RougeScorer(RougeScorerConfig(rouge_no_stemming=True))
    plain.add_string("owls", "owl")
    assert plain.score() == 0


def score(capsys, *arguments):
    """The result of ``fairseq-rum score --json``."""
    assert main(["score", "--json", *map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out)


def test_files_score_like_the_scorer(tmp_path, capsys):
    references = write(tmp_path / "ref", [reference for reference, _ in TEXTS])
    hypotheses = write(tmp_path / "hyp", HYPOTHESES)
    result = score(capsys, "--hyp", hypotheses, "--ref", references)
    expected = score_corpus(Rouge(), REFERENCES, HYPOTHESES)
    for kind in TYPES:
        for measure in MEASURES:
            assert result["rouge"][kind][measure] == vars(expected[kind][measure])
    assert result["summaries"] == 7
    assert result["statistics"]["length"][0] == pytest.approx(mean_length(HYPOTHESES))
    other = score(capsys, "--hyp", hypotheses, "--ref", references, "--no-stemming", "--seed", 2)
    assert other["rouge"] != result["rouge"]


def test_references_in_several_files(tmp_path, capsys):
    hypotheses = write(tmp_path / "hyp", ["a b", "c d"])
    first = write(tmp_path / "first", ["a x", "c d"])
    second = write(tmp_path / "second", ["a b", ""])
    best = score(capsys, "--hyp", hypotheses, "--ref", first, second)
    assert best["rouge"]["rouge1"]["fmeasure"]["mean"] == 100
    mean = score(capsys, "--hyp", hypotheses, "--ref", first, "--ref", second, "--combine", "mean")
    assert mean["rouge"]["rouge1"]["fmeasure"]["mean"] == pytest.approx(87.5)


def test_table_of_a_baseline(tmp_path, capsys):
    texts = write(tmp_path / "src", ["the owl sat . it slept .", "the mat was red . so be it ."])
    references = write(tmp_path / "ref", ["the owl sat", "a red mat"])
    assert main(["score", "--lead", "1", "--src", texts, "--ref", references]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:2] == ["2", "summaries,"]
    assert lines[2][:2] == ["ROUGE-1", "78.57"]
    assert lines[8:10] == [
        ["length", "(words)", "4.5", "3.0"],
        ["repeated", "trigrams", "(%)", "0.0", "0.0"],
    ]
    assert lines[10] == ["novel", "1-grams", "(%)", "0.0", "16.7"]


OUTPUT = """2026-01-01 | INFO | H-7\tnot a line of the output
S-1\tthe mat
T-1\ta mat
H-1\t-0.5\ta mat @
D-1\t-0.5\ta mat
P-1\t-0.5 -0.5
H-1\t-0.7\tworse
D-1\t-0.7\tworse
S-0\tthe owl
T-0\tan owl
H-0\t-0.1\t
D-0\t-0.1\t
Generate test with beam=5: ROUGE-1
"""


def test_output_of_fairseq_generate(tmp_path, capsys):
    path = write(tmp_path / "out", [OUTPUT])
    read = read_generated(path)
    assert read.hypotheses == ["", "a mat"]
    assert read.references == ["an owl", "a mat"] and read.sources == ["the owl", "the mat"]
    result = score(capsys, "--generated", path)
    assert result["rouge"]["rouge1"]["fmeasure"]["mean"] == 50
    assert result["statistics"]["novel 1-grams"] == [50, 50]
    other = write(tmp_path / "ref", ["x", "y"])
    result = score(capsys, "--generated", path, "--ref", other)
    assert result["rouge"]["rouge1"]["fmeasure"]["mean"] == 0


def test_copied_share(tmp_path, capsys):
    files = write(tmp_path / "hyp", ["a b", "c"]), write(tmp_path / "p", ["0.5 0.25 1", "0.25"])
    result = score(capsys, "--hyp", files[0], "--ref", files[0], "--p-gen", files[1])
    assert result["statistics"]["copied"] == [50, None]
    assert main(["score", "--hyp", files[0], "--ref", files[0], "--p-gen", files[1]]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["copied", "(%)", "50.0"]


def bad(*arguments, message):
    return arguments, message


HYP, REF = ("--hyp", "{}/two"), ("--ref", "{}/two")
BAD_INPUT = {
    "no references": bad(*HYP, message="give --ref, the references"),
    "fewer references": bad(
        *HYP, "--ref", "{}/two", "{}/three",
        message="{}/three has 3 lines, but {}/two has 2 summaries",
    ),
    "fewer texts": bad(
        *HYP, *REF, "--src", "{}/three", message="{}/three has 3 lines, but {}/two has 2 summaries"
    ),
    "missing": bad("--hyp", "{}/no", *REF, message="{}/no: No such file or directory"),
    "not UTF-8": bad("--hyp", "{}/latin", *REF, message="{}/latin, line 1: not UTF-8"),
    "empty": bad("--hyp", "{}/empty", *REF, message="{}/empty: is empty"),
    "lead of nothing": bad("--lead", "1", *REF, message="--lead needs --src"),
    "no lead": bad("--lead", "0", "--src", "{}/two", *REF, message="--lead 0: must be at least 1"),
    "samples": bad(*HYP, *REF, "--samples", "0", message="--samples 0: must be at least 1"),
    "not generated": bad("--generated", "{}/two", message="{}/two: no hypotheses (H-0 ...)"),
    "interactive": bad("--generated", "{}/interactive", message="give --ref, the references"),
    "half": bad("--generated", "{}/half", message="{}/half: there is no example 0; fairseq leaves"),
    "cut off": bad("--generated", "{}/cut", message="{}/cut: example 1 lacks its hypothesis or"),
    "p_gen of others": bad(
        *HYP, *REF, "--p-gen", "{}/one", message="{}/one has 1 lines, but there are 2 summaries"
    ),
    "p_gen of words": bad(
        *HYP, *REF, "--p-gen", "{}/two", message="{}/two, line 1: could not convert string to float"
    ),
    "p_gen out of range": bad(
        *HYP, *REF, "--p-gen", "{}/range", message="{}/range, line 2: a p_gen lies between 0 and 1"
    ),
    "p_gen of nothing": bad(
        *HYP, *REF, "--p-gen", "{}/blank", message="{}/blank: has no numbers"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input(tmp_path, capsys, name):
    arguments, message = BAD_INPUT[name]
    for file, lines in {
        "one": ["1"], "two": ["a", "b"], "three": ["a", "b", "c"], "empty": [], "blank": ["", ""],
        "range": ["0", "1.5"], "interactive": ["S-0\ta", "H-0\t-1\tb"], "half": ["H-1\t-1\tb"],
        "cut": ["T-0\ta", "H-0\t-1\tb", "T-1\ta"],
    }.items():  # fmt: skip
        write(tmp_path / file, lines)
    (tmp_path / "latin").write_bytes(b"\xe9\n")
    assert main(["score", *(each.replace("{}", str(tmp_path)) for each in arguments)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("fairseq-rum: error: " + message.replace("{}", str(tmp_path)))


def test_scoring_of_fairseq_generate(tmp_path, capsys):
    """preprocess, train, generate with --scoring rouge, and score its output again: one result."""
    lines = ["the owl sat on a mat .", "a cat ran .", "the mat was red ."] * 4
    source, target = write(tmp_path / "a.source", lines), write(tmp_path / "a.target", lines)
    data = tmp_path / "data"
    command = ["prepare", "summarization", "--tokenized", "--destdir", str(data)]
    command += ["--source-length", "20"]
    for split in ("train", "valid", "test"):
        command += [f"--{split}", source, target]
    assert main(command) == 0
    common = [data, "--user-dir", USER_DIR, "--task", "translation", "--cpu"]
    run_fairseq(
        "train", *common, "--arch", "lstm", "--encoder-embed-dim", 16, "--decoder-embed-dim", 16,
        "--encoder-hidden-size", 16, "--decoder-hidden-size", 16, "--decoder-out-embed-dim", 16,
        "--optimizer", "adam", "--lr", 0.02, "--max-epoch", 40, "--batch-size", 12,
        "--save-dir", tmp_path / "out", "--no-epoch-checkpoints", "--num-workers", 0,
        "--disable-validation",
    )  # fmt: skip
    capsys.readouterr()
    run_fairseq(
        "generate", *common, "--path", tmp_path / "out" / "checkpoint_last.pt", "--scoring",
        "rouge", "--beam", 2, "--required-batch-size-multiple", 1, "--results-path", tmp_path,
        "--max-len-b", 8,
    )  # fmt: skip
    output = tmp_path / "generate-test.txt"
    result = score(capsys, "--generated", output)
    numbers = (
        f"{name} {Estimate(**result['rouge'][kind]['fmeasure'])}" for kind, name in TYPES.items()
    )
    assert output.read_text().splitlines()[-1] == (
        f"Generate test with beam=2: {', '.join(numbers)} (F1 and 95% interval, 12 summaries)"
    )
    assert result["rouge"]["rouge1"]["fmeasure"]["mean"] > 0
    # The texts are the references, which the output and the data directory both have.
    whole = score(
        capsys, "--generated", output, "--ref", data / "test.target.txt",
        "--src", data / "test.source.txt",
    )  # fmt: skip
    assert whole == result
