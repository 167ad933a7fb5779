"""The named language models: their parameters, their YAML, and the page that lists them."""

import importlib.util
import inspect
import json
import logging
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, USER_DIR
from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass.initialize import add_defaults, hydra_init
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from test_language_model import train

from fairseq_rum.cells import get_cell
from fairseq_rum.config import unit_options
from fairseq_rum.errors import InputError

spec = importlib.util.spec_from_file_location(
    "compare", ROOT / "examples" / "language_model" / "compare.py"
)
compare = importlib.util.module_from_spec(spec)
sys.modules["compare"] = compare
spec.loader.exec_module(compare)

CONFIGS = ROOT / "user_dir_configs"
PAGE = (ROOT / "docs" / "ingredients.md").read_text(encoding="utf-8")

# With a dictionary of PTB's 50 symbols in bytes: 49 and the newline, which is </s>. The other three
# special symbols of fairseq (<s>, <pad>, <unk>) are in the first number and not in the second.
COUNTS = {
    "fs_rum": (11_256_537, 11_254_050),
    "fs_rum_tiny": (110_709, 110_418),
    "fs_rum_large": (17_795_137, 17_791_450),
    "fs_lstm_2": (7_234_737, 7_232_250),
    "fs_lstm_4": (6_572_537, 6_570_650),
    "fs_eurnn_2": (12_755_535, 12_753_048),
    "fs_goru_2": (9_550_736, 9_548_249),
    "rum_lm_1000": (2_452_837, 2_449_450),
    "rum_lm_1000_tanh": (2_452_837, 2_449_450),
    "rum_lm_1400": (4_551_237, 4_546_650),
    "rum_lm_1400_no_gate": (2_407_837, 2_403_250),
    "rum_lm_2000": (8_898_837, 8_892_450),
    "rum_lm_2x1500": (16_439_337, 16_434_450),
    "lstm_lm_1000": (4_589_837, 4_586_450),
}


def from_flags(*arguments):
    """The configuration that fairseq-train makes of these arguments."""
    parser = options.get_training_parser()
    arguments = ["data", "--user-dir", USER_DIR, *map(str, arguments)]
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, arguments))


def from_yaml(path, monkeypatch):
    """The configuration that fairseq-hydra-train makes of a file."""
    monkeypatch.setenv("PWD", str(ROOT))
    hydra_init(path.stem)
    GlobalHydra.instance().clear()
    with initialize_config_dir(config_dir=str(path.parent), version_base="1.1"):
        cfg = compose(path.stem)
    add_defaults(cfg)
    if "data" in cfg.task:
        cfg.task.data = "data"
    return OmegaConf.create(OmegaConf.to_container(cfg, resolve=True, enum_to_str=True))


def dictionary():
    symbols = Dictionary()
    for i in range(49):
        symbols.add_symbol(chr(ord("0") + i))
    assert len(symbols) == 53
    return symbols


def build(cfg, monkeypatch):
    # The decompositions take minutes at these sizes, and this is about shapes.
    monkeypatch.setattr(torch.nn.init, "orthogonal_", lambda tensor, gain=1: tensor)
    task = SimpleNamespace(source_dictionary=dictionary(), target_dictionary=dictionary())
    return ARCH_MODEL_REGISTRY[cfg._name].build_model(cfg, task)


def assert_papers_recipe(cfg, arch):
    assert (cfg.task.tokens_per_sample, cfg.dataset.batch_size) == (150, 128)
    assert (cfg.optimization.clip_norm, cfg.optimization.sentence_avg) == (1.0, True)
    assert (cfg.optimizer._name, cfg.criterion._name) == ("adam", "bits_per_token")
    assert list(cfg.optimization.lr) == [2e-3, 1e-4, 1e-5]
    assert list(cfg.lr_scheduler.phase_epochs) == [180, 60, 120]
    assert cfg.optimization.max_epoch == 360
    assert cfg.checkpoint.save_dir == str(ROOT / "checkpoints" / arch)


@pytest.mark.parametrize("arch", COUNTS)
def test_yaml_is_the_architecture_and_has_its_parameters(arch, monkeypatch):
    flags = from_flags(
        "--arch", arch, "--task", "stateful_language_modeling", "--criterion", "bits_per_token"
    )
    yaml = from_yaml(CONFIGS / "language_model" / f"{arch}.yaml", monkeypatch)
    assert flags.model._name == arch
    assert OmegaConf.to_container(yaml.model) == OmegaConf.to_container(flags.model)
    assert_papers_recipe(yaml, arch)

    one, other = build(flags.model, monkeypatch), build(yaml.model, monkeypatch)
    shapes = {name: value.shape for name, value in one.state_dict().items()}
    assert {name: value.shape for name, value in other.state_dict().items()} == shapes
    assert type(one) is type(other)
    total, without = COUNTS[arch]
    assert sum(p.numel() for p in one.parameters()) == total
    embedding, softmax = one.decoder.embed_tokens, one.decoder.output_projection
    assert total - without == 3 * (embedding.embedding_dim + softmax.in_features + 1)


def test_every_architecture_is_in_the_table_of_the_page():
    rows = re.findall(r"^\| `(\w+)` \| .* \| ([\d,]+) \| ([\d,]+) \| [^|]+ \|$", PAGE, re.M)
    table = {
        name: tuple(int(n.replace(",", "")) for n in numbers) for name, *numbers in rows
    }  # fmt: skip
    assert table == COUNTS
    yaml = {path.stem for path in (CONFIGS / "language_model").glob("*.yaml")}
    assert yaml == {*COUNTS, "ptb", "rum_lm"}


@pytest.mark.parametrize("arch", ["fs_rum_tiny", "fs_lstm_2", "rum_lm_1000", "lstm_lm_1000"])
@pytest.mark.parametrize("unit", ["rum", "gru"])
def test_another_unit_in_a_named_architecture(arch, unit, monkeypatch):
    """What the architecture sets for the unit that was there is no option that somebody gave."""
    flags = ["--arch", arch, "--task", "language_modeling", "--rnn-unit", unit, "--dropout", 0.1]
    model = build(from_flags(*flags).model, monkeypatch)
    assert {layer.cell.unit for layer in model.decoder.rnn.layers} == {unit}
    for option in ("--fast-slow-dropout", "--lstm-zoneout"):
        with pytest.raises(InputError, match=f"{option} is an option of unit"):
            build(from_flags(*flags, option, 0.2).model, monkeypatch)


def table_5():
    lines = PAGE[PAGE.index("| task | lambda") :].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines[2 : lines.index("")]]
    return {row[0][0]: row[1:] for row in rows}


SIZES = ("hidden_size", "decoder_hidden_size")


@pytest.mark.parametrize("task", "ABCDE")
def test_best_ingredients(task):
    """What Table 5 says of a task is what the architecture in its last column gives to RUM."""
    lambda_, eta, activation, gate, size, also, here = table_5()[task]
    flag, arch = here.strip("`").split()
    assert flag == "--arch"
    cfg = from_flags(flag, arch, "--task", "language_modeling").model
    parameters = inspect.signature(get_cell("rum").__init__).parameters
    given = unit_options(cfg, "rum")
    rum = {name: given.get(name, p.default) for name, p in parameters.items()}
    assert rum["lambda_"] == int(lambda_)
    assert rum["eta"] == (None if eta == "none" else float(eta))
    assert rum["activation"] == "relu" and activation in ("ReLU", "-")
    assert rum["update_gate"] and gate in ("yes", "-")
    if task == "D":
        assert size == f"{cfg.decoder_hidden_size}/{cfg.slow_hidden_size}"
        assert also == "FS-RUM-2: layer normalization, zoneout, dropout"
        assert rum["layer_norm"] and rum["zoneout"] and cfg.dropout
    elif size != "-":
        assert int(size) in [getattr(cfg, name) for name in SIZES if name in cfg]


@pytest.mark.parametrize(
    "arch, file",
    [
        ("rum_copying", "memory/copying.yaml"),
        ("rum_recall", "memory/recall.yaml"),
        ("rum_babi", "question_answering/babi.yaml"),
    ],
)
def test_yaml_of_a_task_is_the_papers_choice_for_it(arch, file, monkeypatch):
    yaml = from_yaml(CONFIGS / file, monkeypatch).model
    flags = from_flags("--arch", arch, "--task", "language_modeling").model
    base = "rum_qa" if arch == "rum_babi" else "rum_memory"
    assert (flags._name, yaml._name) == (arch, base)
    values = [OmegaConf.to_container(cfg) for cfg in (flags, yaml)]
    assert {**values[0], "_name": base} == values[1]


def test_learning_rate_phases(char_data, tmp_path, caplog):
    """Each rate for its epochs, also when resumed within the second phase."""
    caplog.set_level(logging.INFO)
    phases = ["--rnn-unit", "lstm", "--lr-scheduler", "phases", "--lr", "0.01,0.001,0.0001",
              "--phase-epochs", "1,2,1", "--tokens-per-sample", 400, "--no-epoch-checkpoints",
              "--disable-validation"]  # fmt: skip
    for updates in (5, 15):
        train(char_data, tmp_path, *phases, "--max-update", updates)
    rates = {}
    for record in caplog.records:
        message = record.getMessage()
        if record.name == "train" and " | lr " in message:
            epoch = int(message.split("epoch ")[1].split()[0])
            rates[epoch] = float(message.split(" | lr ")[1].split()[0])
    assert rates == {1: 0.01, 2: 0.001, 3: 0.001, 4: 0.0001, 5: 0.0001}
    with pytest.raises(InputError, match="--phase-epochs has to give as many .*, got 2 and 3"):
        train(char_data, tmp_path / "a", *phases, "--phase-epochs", "1,2", "--max-update", 1)
    with pytest.raises(InputError, match="--phase-epochs must be at least 1, got 0"):
        train(char_data, tmp_path / "b", *phases, "--phase-epochs", "1,0,1", "--max-update", 1)


def test_models_of_the_comparison_have_a_million_parameters(monkeypatch):
    """Within half a percent, all with layer normalization, none with dropout or zoneout."""
    for name, run in compare.RUNS.items():
        if run.group != "comparison" and name != "eta":
            continue
        command = compare.train_command(run, "unused", compare.parse_arguments(["data", "20"]))
        cfg = from_flags(*command[4:])
        assert cfg.model._name in (*COUNTS, "rum_lm")
        model = build(cfg.model, monkeypatch)
        count = sum(p.numel() for p in model.parameters())
        assert count == pytest.approx(1e6, rel=5e-3), (name, count)
        for cell in model.modules():
            if hasattr(cell, "layer_norm"):
                assert cell.layer_norm, name
            for noise in ("dropout", "zoneout", "zoneout_cell"):
                assert getattr(cell, noise, 0.0) == 0.0, name


def test_results_of_the_comparison(tmp_path):
    """From what fairseq wrote to the page, and what is done is not done again."""
    text = "\n".join(
        ["num. shared model params: 1,000 (num. trained: 998)"]
        + [json.dumps({"bpc": 5.0 - u / 10, "gnorm": u, "wps": 100 / 6, "wpb": 100,
                       "num_updates": u, "wall": 6 * u}) for u in (10, 20, 30)]
        + [json.dumps({"valid_bpc": 2.5, "valid_num_updates": 33})]
    )  # fmt: skip
    run = compare.RUNS["gru"]
    record = compare.numbers(text, 0, run)
    assert record == {"updates": 33, "minutes": 3.0, "parameters": 998, "valid_bpc": 2.5,
                      "characters_per_second": 17, "status": "finished"}  # fmt: skip
    assert compare.numbers(text, 1, run)["status"] == "error"
    assert compare.numbers(text, -15, run)["status"] == "unfinished"
    diverged = text + "\nFloatingPointError: Minimum loss scale reached"
    assert compare.numbers(diverged, 1, compare.RUNS["no_eta"])["status"] == "diverged"
    assert compare.numbers(text, 0, compare.RUNS["no_eta"])["status"] == "unfinished"

    record.update(seed=1, hardware=["a machine"], commit=["abc"], test_bpc=2.4, budget=20.0)
    compare.keep(text, record, tmp_path / "results" / "gru")
    page = tmp_path / "README.md"
    marks = "<!-- comparison: compare.py -->\nold\n<!-- comparison: end -->"
    page.write_text(f"before\n{marks}\nafter\n")
    arguments = ["data", "20", "gru", "--results", str(tmp_path / "results"), "--page", str(page)]
    for _ in range(2):
        assert compare.main([*arguments, "--work", str(tmp_path / "work")]) == 0
    written = page.read_text()
    assert written.startswith("before\n<!--") and written.endswith("end -->\nafter\n")
    assert "| GRU, 505 | 998 | 33 | 3.0 | - | - | 2.500 | 2.400 |" in written
    assert "old" not in written and (tmp_path / "compare_bpc.png").exists()
    options = compare.parse_arguments(["data", "30", "gru"])
    assert not compare.is_done(run, record, options), "more minutes: it goes on"
