"""examples/summarization/runs.py: the list of runs, and small ones from start to table."""

import contextlib
import dataclasses
import importlib.util
import io
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import in_process
import pytest
from conftest import ROOT, USER_DIR

from fairseq_rum.cli.main import main

RUNS = ROOT / "examples" / "summarization" / "runs.py"
spec = importlib.util.spec_from_file_location("summarization_runs", RUNS)
runs = importlib.util.module_from_spec(spec)
sys.modules["summarization_runs"] = runs
spec.loader.exec_module(runs)
summary_corpora = sys.modules["summary_corpora"]


def test_list_of_runs():
    found = {run.name: run for run in runs.all_runs()}
    assert len(found) == len(runs.all_runs()) == 1 + 4 + 4 * 2 + 2
    for corpus in runs.CORPORA:
        labels = [run.label for run in found.values() if run.corpus == corpus]
        assert labels and len(set(labels)) == len(labels)
    for run in found.values():
        assert not run.base or found[run.base].model == run.model


def test_every_command_is_understood(tmp_path):
    """fairseq's parser knows every option, and every architecture is one of the paper's."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    arguments = runs.parse_arguments(["--work", str(tmp_path), "--user-dir", USER_DIR])
    for run in {run.model: run for run in runs.all_runs()}.values():
        command = runs.train_command(run, "data", "out", arguments)
        args = options.parse_args_and_arch(options.get_training_parser(), command[1:])
        model = convert_namespace_to_omegaconf(args).model
        assert model.decoder_rnn_unit == ("rum" if run.model in ("decrum", "allrum") else "lstm")
        assert model.encoder_rnn_unit == ("rum" if run.model in ("encrum", "allrum") else "lstm")
        assert args.stop_time_hours == pytest.approx(0.2 * run.share) and args.batch_size == 16
        command = runs.generate_command(run, "data", "model.pt", "out", arguments)
        args = options.parse_args_and_arch(options.get_generation_parser(), command[1:])
        assert (args.beam, args.scoring) == (4, "rouge")


def test_the_two_best_get_coverage(tmp_path):
    arguments = runs.parse_arguments(["--results", str(tmp_path)])
    for name, loss in (("lead", 3.0), ("encrum", 1.0), ("decrum", 2.0)):
        record = {"status": "finished", "valid_loss": loss}
        (tmp_path / f"gigaword10k-{name}").mkdir()
        (tmp_path / f"gigaword10k-{name}" / "run.json").write_text(json.dumps(record))
    assert runs.coverage_runs(arguments) == []
    (tmp_path / "gigaword10k-allrum").mkdir()
    record = {"status": "finished", "valid_loss": 4.0}
    (tmp_path / "gigaword10k-allrum" / "run.json").write_text(json.dumps(record))
    found = runs.coverage_runs(arguments)
    assert [run.name for run in found] == ["gigaword10k-encrum-cov", "gigaword10k-decrum-cov"]
    assert found[0].label == "encRUM, coverage"


@pytest.mark.parametrize("name", ["gigaword10k", "scitldr-s2s", "scitldr-sh2s", "scitldr-s2t"])
def test_files_of_the_real_corpora(shared_data, tmp_path, name):
    from fairseq_rum.cli.main import build_parser

    corpus = runs.CORPORA[name]
    options = " ".join([corpus.prepare, *corpus.files(tmp_path, shared_data), "--destdir data"])
    args = build_parser().parse_args(options.split()[1:])
    lengths = []
    for split in ("train", "valid", "test"):
        for file in getattr(args, split):
            lengths.append(len((ROOT / file).read_text("utf-8").rstrip("\n").split("\n")))
    expected = [9500, 9500, 500, 500, 1000, 1000] if name == "gigaword10k" else [1992, 619, 618]
    assert lengths == expected


def test_no_place_of_this_machine_is_in_a_record(tmp_path, monkeypatch):
    executed = []
    monkeypatch.setattr(summary_corpora, "execute", lambda command, *_: executed.append(command))
    options = SimpleNamespace(work=tmp_path / "work", data=tmp_path / "w", threads=1)
    summary_corpora.prepare(runs.CORPORA["scitldr-s2s"], options)
    written = (tmp_path / "work" / "data" / "scitldr-s2s" / "command").read_text()
    assert "--train DATA/scitldr/train.jsonl --valid DATA/scitldr/dev.jsonl" in written
    assert "w/scitldr" not in written and str(Path("work", "data", "scitldr-s2s")) in written
    (command,) = executed
    file = ROOT / command[command.index("--train") + 1]
    assert file.resolve() == tmp_path / "w" / "scitldr" / "train.jsonl"


@pytest.fixture
def small(tmp_path, monkeypatch):
    """The options of runs that take seconds; the commands are run in this process."""

    def score(command):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert main([*command[1:], "--json"]) == 0
        return json.loads(out.getvalue())

    monkeypatch.setattr(runs, "score", score)
    monkeypatch.setattr(runs, "execute", in_process.execute)
    monkeypatch.setattr(summary_corpora, "execute", in_process.execute)
    monkeypatch.setitem(runs.ARCHS, "decrum", ("decRUM", "pointer_gen_rum_tiny"))
    monkeypatch.setattr(runs, "EVERY", 20)
    monkeypatch.setattr(runs, "all_runs", lambda: [runs.Run("names-decrum", "names", "decrum")])
    monkeypatch.setattr(runs, "coverage_runs", lambda options: COVERAGE)
    folders = ["--work", str(tmp_path / "work"), "--results", str(tmp_path / "results")]
    return [*folders, "--user-dir", USER_DIR, "--minutes", "0.05"]


COVERAGE = [runs.Run("names-decrum-cov", "names", "decrum", "names-decrum", True, 1 / 3)]


def test_runs_from_start_to_table(small, tmp_path, capsys):
    (tmp_path / "README.md").write_text("# Title\n\nText.\n")
    assert runs.main(small) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["names-decrum: finished", "names-decrum-cov: finished"]
    first, second, baseline = (
        json.loads((tmp_path / "results" / name / "run.json").read_text())
        for name in ("names-decrum", "names-decrum-cov", "names-baseline")
    )
    assert first["minutes"] >= 0.05 and first["updates"] > 0
    # With coverage it goes on from the best checkpoint for a third of the time.
    assert "--coverage --finetune-from-model" in second["commands"][1]
    stop = float(re.search(r"--stop-time-hours (\S+)", second["commands"][1])[1])
    assert second["minutes"] >= round(60 * stop, 2) > 0.01 and second["updates"] > 0
    assert second["parameters"] > first["parameters"], "w_c is new"
    for record in (first, second, baseline):
        assert 0 <= record["scores"]["rouge"]["rouge1"]["fmeasure"]["mean"] <= 100
    assert 0 <= first["scores"]["statistics"]["copied"][0] <= 100

    text = (tmp_path / "README.md").read_text()
    assert text.startswith("# Title\n\nText.\n")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    labels = [row.split(" | ")[0] for row in rows]
    assert labels == ["| model", "| first sentence", "| decRUM", "| decRUM, coverage"]
    mean = first["scores"]["rouge"]["rougeL"]["fmeasure"]["mean"]
    assert f" | {mean:.2f} [" in rows[2]
    for command in [*first["commands"], *second["commands"], *baseline["commands"]]:
        assert command in text

    assert runs.main(small) == 0
    assert "names-decrum: finished before" in capsys.readouterr().out
    assert (tmp_path / "README.md").read_text() == text


@pytest.mark.parametrize("name", ["cnn_dm_coverage", "science_press"])
def test_recipes_are_the_model_of_the_paper(name):
    """What fairseq-hydra-train makes of the YAML is the architecture, but for coverage."""
    from fairseq.dataclass.initialize import add_defaults, hydra_init
    from hydra import compose, initialize_config_dir

    from fairseq_rum.models.pointer_gen_rum import PointerGeneratorConfig

    hydra_init()
    with initialize_config_dir(str(RUNS.parent), version_base="1.1"):
        overrides = ["task.data=data", "++checkpoint.finetune_from_model=model.pt"]
        cfg = compose(name, overrides=overrides)
    add_defaults(cfg)
    assert cfg.task._name == "rum_summarization" and cfg.criterion.coverage_loss_weight == 1
    assert (cfg.optimizer._name, cfg.optimization.lr) == ("rum_adagrad", [0.15])
    for field in dataclasses.fields(PointerGeneratorConfig):
        if field.name not in ("_name", "coverage"):
            assert cfg.model[field.name] == field.default, field.name
    assert cfg.model.coverage == (name == "cnn_dm_coverage")


def test_sentencepiece_recipe(tmp_path, monkeypatch, capsys):
    """Pieces of both sides under one dictionary, from which fairseq makes the text again."""
    import runpy

    import sentencepiece
    from fairseq.data import Dictionary, data_utils

    lines = [f"the owl {i} sat on the mat and slept ." for i in range(40)]
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "few").write_text("one\n")
    command = ["pieces.py", "--pieces", "60", "--source-length", "9"]
    for split in ("train", "valid", "test"):
        command += [f"--{split}", *[str(tmp_path / "text")] * 2]
    for options, status in (
        ([], 0),
        (["--test", str(tmp_path / "text"), str(tmp_path / "few")], 2),
    ):
        data = tmp_path / f"data{status}"
        monkeypatch.setattr(sys, "argv", [*command, *options, "--destdir", str(data)])
        with pytest.raises(SystemExit) as stop:
            runpy.run_path(str(RUNS.parent / "pieces.py"), run_name="__main__")
        assert stop.value.code == status and data.exists() == (status == 0)
    assert "text has 40 lines, but" in capsys.readouterr().err

    dictionary = Dictionary.load(str(tmp_path / "data0" / "dict.source.txt"))
    rows, texts = (
        data_utils.load_indexed_dataset(
            str(tmp_path / "data0" / f"test.source-target.{side}"), dictionary
        )
        for side in ("target", "source")
    )
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "data0" / "spm.model"))
    assert model.decode(dictionary.string(rows[7]).split()) == lines[7]
    assert len(texts[7]) == 9 + 1


STOP = "Stopping training due to cumulative_training_time: 0.21 > stop_time_hours: 0.2 hour(s)\n"
LINE = '2026 | INFO | valid | {"epoch": 1, "valid_loss": "%s", "valid_num_updates": "%d"}\n'


@pytest.mark.parametrize(
    "text, status, expected",
    [
        (LINE % (3.5, 50) + STOP, 0, ("finished", 50, 3.5)),
        (LINE % (3.5, 50) + LINE % (3.75, 60), -15, ("unfinished", 60, 3.5)),
        (LINE % (3.5, 50) + STOP, -15, ("unfinished", 50, 3.5)),
        (LINE % (3.5, 50) + "FloatingPointError: gradients\n", 1, ("diverged", 50, 3.5)),
        ("RuntimeError: no space\n", 1, ("error", 0, None)),
    ],
)
def test_what_becomes_of_a_training(text, status, expected):
    result = runs.outcome(text, status)
    assert (result["status"], result["updates"], result["valid_loss"]) == expected


def test_unknown_names(capsys):
    with pytest.raises(SystemExit, match="--only x: no such run, or not yet; there are names-"):
        runs.main(["--list", "--only", "x"])
