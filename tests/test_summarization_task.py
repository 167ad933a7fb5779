"""rum_summarization: data, and real words in what fairseq's commands print."""

import json
import re

import pytest
import torch
from conftest import USER_DIR, run_fairseq
from fairseq.data import Dictionary
from summary_corpus import build_model, build_task, make_pairs, prepare, train_arguments

from fairseq_rum.cli.main import main
from fairseq_rum.data.pointer_dictionary import PointerDictionary
from fairseq_rum.data.summary_record import SummaryRecord
from fairseq_rum.errors import DivergenceError, InputError

PAIRS = make_pairs(50)
TEST = make_pairs(21, seed=2)  # other names, which no training has seen
SIZES = ["--embed-dim", 24, "--encoder-hidden-size", 24, "--decoder-hidden-size", 24]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    splits = {"valid": make_pairs(3, seed=3), "test": TEST}
    return prepare(tmp_path_factory.mktemp("data"), PAIRS, "--vocabulary", 24, **splits)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A checkpoint that has learned the training pairs, and one from shortly before."""
    folder = tmp_path_factory.mktemp("trained")
    run_fairseq(
        "train", *train_arguments(data, folder, *SIZES), "--optimizer", "adam", "--lr", 0.015,
        "--batch-size", 25, "--max-update", 100, "--save-interval-updates", 79,
        "--disable-validation",
    )  # fmt: skip
    return [folder / "checkpoint_last.pt", folder / "checkpoint_40_79.pt"]


def command(data, *paths):
    return [
        data, "--user-dir", USER_DIR, "--task", "rum_summarization", "--path",
        ":".join(map(str, paths)), "--cpu", "--beam", 4, "--max-len-b", 10, "--no-progress-bar",
    ]  # fmt: skip


def lines(output, letter):
    """Number -> texts of the lines S-, T-, H-, D- ... of fairseq-generate and -interactive."""
    found = {}
    for line in output.splitlines():
        match = re.fullmatch(rf"{letter}-(\d+)\t(.*)", line)
        if match:
            text = match[2].split("\t", 1)[1] if letter in "HD" else match[2]
            found.setdefault(int(match[1]), []).append(text)
    return found


def only(output, letter):
    found = lines(output, letter)
    return [found[i][0] for i in range(len(found))]


# --- dictionary -----------------------------------------------------------------------------------


def dictionary_of(*symbols, markers=5):
    dictionary = PointerDictionary()
    for symbol in (*symbols, *(f"<unk-{k}>" for k in range(markers))):
        dictionary.add_symbol(symbol)
    return dictionary


def test_unknown_words_have_indices_beyond_the_dictionary():
    dictionary = dictionary_of("a", "b")
    assert (len(dictionary), dictionary.markers) == (11, 5)
    tokens = dictionary.encode_line("a Zoë b Zoë 中文", add_if_not_exist=False)
    assert tokens.tolist() == [4, 11, 5, 11, 12, 2]
    assert dictionary.string(tokens) == "a Zoë b Zoë 中文"
    assert len(dictionary) == 11 and dictionary.index("Zoë") == dictionary.unk()
    assert dictionary == dictionary_of("a", "b")


def test_marking_and_back():
    """Rows with different unknown words; padding on either side; more words than markers."""
    dictionary = dictionary_of("a", "b")
    rows = ["x a x y", "a z", "p q r s t u p"]
    encoded = [dictionary.encode_line(row, append_eos=False).long() for row in rows]
    for left in (False, True):
        padded = torch.full((3, 7), dictionary.pad())
        for row, tokens in zip(padded, encoded):
            row[slice(-len(tokens), None) if left else slice(len(tokens))] = tokens
        marked = dictionary.mark(padded)
        texts = [dictionary.string(row[row.ne(1)]) for row in marked]
        assert texts == [
            "<unk-0> a <unk-0> <unk-3>",
            "a <unk-1>",
            "<unk-0> <unk-1> <unk-2> <unk-3> <unk-4> <unk> <unk-0>",
        ]
        markers = torch.arange(6, 11)
        back = [dictionary.string(dictionary.unmark(markers, row)) for row in padded]
        unk = "<unk>"
        assert back == [f"x {unk} x y {unk}", f"{unk} z {unk} {unk} {unk}", "p q r s t"]
        assert marked[0][dictionary.mark(padded)[0].ge(6)].min() >= 6
    known = torch.tensor([4, 5, 2])
    assert torch.equal(dictionary.unmark(known, padded[0]), known)


def test_what_looks_like_a_symbol_is_unknown_and_no_word():
    dictionary = dictionary_of("a")
    tokens = dictionary.encode_line("a <unk-1> <pad> </s> <s> <unk> <unk-99>")
    assert tokens.tolist() == [4] + [dictionary.unk()] * 6 + [2]


def test_memory_is_bounded():
    """10,000 summaries, each with new words: an index never means another word later."""
    dictionary = dictionary_of("a")
    dictionary.capacity = 500
    first = dictionary.encode_words(["first"])[0]
    for number in range(10_000):
        words = [f"new{number}x{k}" for k in range(5)]
        indices = dictionary.encode_words(words)
        assert [dictionary[i] for i in indices] == words
    assert len(dictionary._index_of) == len(dictionary._word_of) == 500
    assert len(dictionary) == 10 and len(dictionary.indices) == 10
    assert dictionary[first] == "<unk>"
    assert dictionary.encode_words(["first"])[0] != first
    dictionary.reserve(3000)
    indices = dictionary.encode_words(f"many{k}" for k in range(3000))
    assert dictionary[indices[0]] == "many0"


# --- data set -------------------------------------------------------------------------------------


def test_data_set_gives_real_words_and_cuts(data):
    task = build_task(data)
    task.load_dataset("test")
    dataset = task.dataset("test")
    for i, (source, target) in enumerate(zip(*TEST)):
        assert " ".join(dataset.source_words(i)) == source
        assert " ".join(dataset.target_words(i)) == target
        example = dataset[i]
        assert len(example["source"]) == len(source.split()) == dataset.src_sizes[i], "no end mark"
        assert example["target"][-1] == task.dictionary.eos()
        unknown = [w for w in source.split() if w[0] in "AB"]
        string = task.dictionary.string(example["source"])
        assert re.findall(r"<unk-(\d+)>", string) == [str(source.split().index(w)) for w in unknown]


def test_markers_of_cut_words_become_unk_and_references_stay_whole(data):
    task = build_task(data, max_source_positions=3, max_target_positions=2)
    task.load_dataset("test")
    dataset = task.dataset("test")
    kinds = set()
    for i, (source, target) in enumerate(zip(*TEST)):
        example = dataset[i]
        assert len(example["source"]) == 3 and len(example["target"]) == 2
        assert dataset.source_words(i) == source.split()[:3]
        assert dataset.target_words(i) == target.split()
        first = task.dictionary.symbols[example["target"][0]]
        name = target.split()[0]
        kinds.add(first == "<unk>")
        position = source.split().index(name)
        assert first == (f"<unk-{position}>" if position < 3 else "<unk>")
    assert kinds == {True, False}


def test_empty_texts(tmp_path):
    """An empty target is its end mark, an empty source an end mark to attend to."""
    test = (["", "a new name Zoë", "x"], ["b", "", ""])
    data = prepare(tmp_path, (["a b"] * 3, ["a"] * 3), test=test)
    task = build_task(data)
    task.load_dataset("test")
    dataset = task.dataset("test")
    batch = dataset.collater([dataset[i] for i in range(3)])
    order = batch["id"].tolist()
    assert batch["target"][order.index(1)].tolist() == [2, 1]
    assert batch["net_input"]["src_tokens"][order.index(0)].tolist() == [2, 1, 1, 1]
    assert dataset.source_words(0) == [] and dataset.target_words(1) == []
    model = build_model(task, coverage=True)
    log_probs, _ = model(**batch["net_input"], target=batch["target"])
    log_probs.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    generator = task.build_generator([model], generation_options())
    hypotheses = task.inference_step(generator, [model], batch)
    assert len(hypotheses) == 3
    assert task.dictionary.string(batch["target"][order.index(0)]) == "b"


def generation_options(**options):
    from argparse import Namespace

    return Namespace(**{"beam": 2, "max_len_b": 5, **options})


def test_words_that_do_not_belong_to_the_data_are_refused(data, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    side = copy / "test.source-target.source.unknown"
    content = side.read_text().splitlines(keepends=True)
    side.write_text("".join([*content[:-1], "three words here\n"]))
    task = build_task(copy)
    task.load_dataset("test")
    with pytest.raises(InputError, match="example 20 of test: the .unknown files do not belong"):
        task.dataset("test").source_words(20)
    side.unlink()
    task.load_dataset("test")
    with pytest.raises(InputError, match="test.source-target.source.unknown: cannot be read"):
        task.dataset("test").source_words(0)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_source_positions": 0}, "--max-source-positions must be at least 1, got 0"),
        ({"max_target_positions": -1}, "--max-target-positions must be at least 1, got -1"),
        ({"max_source_positions": 401}, "401 is above the number of markers .*, 400"),
        ({"data": ""}, "give the data directory"),
        ({"data": "nowhere"}, "nowhere: no such data directory"),
        ({"data": USER_DIR}, "there are no pairs in it"),
    ],
)
def test_bad_options(data, options, message):
    with pytest.raises(InputError, match=message):
        build_task(**{"data": data, **options})


def test_bad_data(data, tmp_path):
    with pytest.raises(InputError, match="no split 'train2"):
        build_task(data).load_dataset("train2")
    names = {"source_lang": "source", "target_lang": "target"}
    with pytest.raises(InputError, match="dict.source.txt: no such file"):
        build_task(tmp_path, **names)
    for side in names.values():
        (tmp_path / f"dict.{side}.txt").write_text(f"a 1\n{side} 1\n")
    with pytest.raises(InputError, match="source and target have different dictionaries"):
        build_task(tmp_path, **names)
    (tmp_path / "dict.source.txt").write_text("a 1\n<unk-1> 0\n")
    with pytest.raises(InputError, match="dict.source.txt: the dictionary's markers"):
        build_task(tmp_path, **names)


def test_unk_is_allowed_by_an_option_alone(data):
    options = generation_options(unkpen=1.0)
    with pytest.raises(InputError, match="--unkpen has no effect without --allow-unk"):
        build_task(data).build_generator([build_model(build_task(data))], options)
    task = build_task(data, allow_unk=True)
    assert task.build_generator([build_model(task)], options).unk_penalty == 1.0


# --- generation through fairseq's commands --------------------------------------------------------


def test_a_run_that_diverges_ends_with_a_sentence(data, tmp_path):
    with pytest.raises(DivergenceError, match="training diverged at update .* units are lstm, rum"):
        run_fairseq(
            "train", *train_arguments(data, tmp_path), "--optimizer", "sgd", "--lr", 1e9,
            "--max-update", 20, "--no-save",
        )  # fmt: skip


def test_overfitted_pairs_are_copied_verbatim(data, trained, capsys):
    """All 50 training pairs, the right names each time, in batches and with worker processes."""
    run_fairseq(
        "generate", *command(data, trained[0]), "--gen-subset", "train", "--batch-size", 16,
        "--num-workers", 1, "--nbest", 4, "--no-repeat-ngram-size", 3,
    )  # fmt: skip
    out = capsys.readouterr().out
    assert only(out, "S") == PAIRS[0]
    assert only(out, "T") == only(out, "D") == PAIRS[1]
    assert "BLEU4 = 100.00" in out
    for number, hypotheses in lines(out, "H").items():
        assert len(hypotheses) == 4
        for word in " ".join(hypotheses).split():
            assert word[0] not in "AB" or word in PAIRS[0][number].split(), "names of this row"
    assert "<unk" not in "".join(text for texts in lines(out, "[STHD]").values() for text in texts)


def test_ensemble_with_new_names(data, trained, tmp_path, capsys):
    """Names that were not in training; p_gen and attention of the printed summaries."""
    p_gen, attention = tmp_path / "p_gen", tmp_path / "attention.jsonl"
    run_fairseq(
        "generate", *command(data, *trained), "--gen-subset", "test", "--batch-size", 8,
        "--p-gen-path", p_gen, "--attention-path", attention, "--num-workers", 0, "--scoring",
        "rouge",
    )  # fmt: skip
    out = capsys.readouterr().out
    generated = tmp_path / "generated"
    generated.write_text(out)
    assert main(["score", "--generated", str(generated), "--p-gen", str(p_gen), "--json"]) == 0
    score = json.loads(capsys.readouterr().out)
    assert score["summaries"] == 21
    assert only(out, "S") == TEST[0] and only(out, "T") == TEST[1], "the last batch too"
    summaries = only(out, "H")
    assert sum(a == b for a, b in zip(summaries, TEST[1])) >= 12
    records = [json.loads(line) for line in attention.read_text().splitlines()]
    numbers = [[float(x) for x in line.split()] for line in p_gen.read_text().splitlines()]
    assert sorted(record["id"] for record in records) == list(range(21))
    for record, values in zip(records, numbers):
        number = record["id"]
        assert " ".join(record["summary"]) == summaries[number]
        assert " ".join(record["source"]) == TEST[0][number]
        assert record["p_gen"] == values and len(values) == len(record["summary"])
        for word, value, row in zip(record["summary"], values, record["attention"]):
            assert len(row) == len(record["source"]) and sum(row) == pytest.approx(1, abs=0.01)
            if word[0] in "AB":  # these can only be copied
                assert value < 0.5 and record["source"][row.index(max(row))] == word


def test_scoring_a_reference_and_sampling(data, trained, capsys):
    """fairseq's other ways to generate print real words too."""
    common = [*command(data, trained[0]), "--gen-subset", "test", "--num-workers", 0]
    run_fairseq("generate", *common, "--score-reference")
    assert only(capsys.readouterr().out, "H") == TEST[1]
    run_fairseq("generate", *common, "--sampling", "--sampling-topk", 9, "--beam", 2, "--nbest", 2)
    hypotheses = lines(capsys.readouterr().out, "H")
    for number, source in enumerate(TEST[0]):
        names = [w for text in hypotheses[number] for w in text.split() if w[0] in "AB"]
        assert set(names) <= set(source.split())


HOSTILE = [
    "the old man Anna9 met Bert9 near a river",
    "",
    "Xaver Yvonne Zacharias",
    " ".join(f"word{i}" for i in range(5000)),
    "Zoë traf 李雷 и Ольга 🙂 e\u0301 \u202eabc\u202c \u200bzero",
    "<unk-7> <unk> met <pad> </s> <s> Anna8 <unk-0>",
    "met",
    "tab\tand\u00a0other\u3000spaces \x07 bell",
]


def test_interactive_with_hostile_input(data, trained, tmp_path, capsys):
    """Each line has its summary, of words of the vocabulary and of its own text alone."""
    typed = tmp_path / "typed"
    typed.write_text("".join(f"{line}\n" for line in HOSTILE), encoding="utf-8")
    vocabulary = set(Dictionary.load(str(data / "dict.source.txt")).symbols)
    for buffer, size in ((1, 1), (6, 3)):
        run_fairseq(
            "interactive", *command(data, *trained), "--input", typed, "--buffer-size", buffer,
            "--batch-size", size, "--nbest", 4, "--min-len", 3,
        )  # fmt: skip
        out = capsys.readouterr().out
        sources, hypotheses = lines(out, "S"), lines(out, "H")
        assert sorted(sources) == sorted(hypotheses) == list(range(len(HOSTILE)))
        for number, line in enumerate(HOSTILE):
            # The marks <s> and </s> are left out; what else looks like a symbol is no word.
            words = [w for w in line.split() if w not in ("<s>", "</s>")][:400]
            shown = ["<unk>" if re.match("<(unk|pad)", word) else word for word in words]
            assert sources[number][0].split() == shown
            for text in hypotheses[number]:
                assert "<" not in text
                assert all(word in vocabulary or word in words for word in text.split())
        assert hypotheses[0][0] == "Anna9 met Bert9"


def test_constraints_may_be_unknown_words(data, trained, tmp_path, capsys):
    typed = tmp_path / "typed"
    typed.write_text("the old man Anna9 met Bert9 near a river Carla9\tCarla9\nBert7 saw a man\n")
    common = [*command(data, trained[0]), "--input", typed, "--constraints", "--buffer-size", 2]
    run_fairseq("interactive", *common, "--batch-size", 2)
    out = capsys.readouterr().out
    assert "Carla9" in only(out, "H")[0].split()
    typed.write_text("the old man Anna9 met Bert9\tCarla9\n")
    with pytest.raises(InputError, match="'Carla9' is neither in the dictionary nor in its text"):
        run_fairseq("interactive", *common)


def test_hub(data, trained):
    from fairseq_rum.models import PointerGenerator

    hub = PointerGenerator.from_pretrained(
        str(trained[0].parent), trained[0].name, data_name_or_path=str(data)
    )
    first = hub.encode(" the old man Anna9 met Bert9 near a river <s>")
    second = hub.encode("a big house Anna8 saw Bert8 today")
    found = hub.generate([first, second], beam=4, max_len_b=10)
    assert hub.decode(found[0][0]["tokens"]) == "Anna9 met Bert9"
    assert set(hub.decode(found[1][0]["tokens"]).split()) >= {"Anna8", "Bert8"}


def test_other_data_with_the_models_dictionary(data, trained, tmp_path, capsys):
    """Out-of-domain testing: --dict of the training data; another dictionary is refused."""
    pairs = make_pairs(5, seed=4)
    other = prepare(tmp_path, pairs, "--dict", data / "dict.source.txt", test=pairs)
    run_fairseq("generate", *command(other, trained[0]), "--gen-subset", "test", "--batch-size", 2)
    out = capsys.readouterr().out
    assert only(out, "S") == pairs[0] and only(out, "T") == pairs[1]
    (tmp_path / "new").mkdir()
    new = prepare(tmp_path / "new", make_pairs(9, seed=5), test=pairs)
    with pytest.raises(InputError, match="trained with another dictionary"):
        run_fairseq("generate", *command(new, trained[0]), "--gen-subset", "test")


def test_two_records_in_one_file_are_refused(tmp_path):
    path = tmp_path / "a.txt"
    with pytest.raises(InputError, match="--p-gen-path and --attention-path are one file"):
        SummaryRecord(str(path), str(tmp_path / "." / "a.txt"))
