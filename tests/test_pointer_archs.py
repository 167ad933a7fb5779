"""The named architectures of summarization mean the same on the command line and in YAML."""

import pytest
import torch
from conftest import ROOT, USER_DIR, run_fairseq, run_hydra
from fairseq import options
from fairseq.dataclass.initialize import add_defaults, hydra_init
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from summary_corpus import make_pairs, prepare

import fairseq_rum  # noqa: F401, registers them

CONFIGS = ROOT / "user_dir_configs" / "summarization"

# name -> units, hidden sizes, embeddings, and what is set of RUM
ARCHS = {
    "pointer_gen_rum": ("lstm", "rum", 256, 256, 128, {}),
    "pointer_gen_dec_rum_360": ("lstm", "rum", 256, 360, 128, {}),
    "pointer_gen_enc_rum": ("rum", "lstm", 256, 256, 128, {}),
    "pointer_gen_all_rum": ("rum", "rum", 256, 256, 128, {}),
    "pointer_gen_lstm": ("lstm", "lstm", 256, 256, 128, {}),
    "pointer_gen_rum_tanh": ("lstm", "rum", 256, 256, 128, {"rum_activation": "tanh"}),
    "pointer_gen_rum_no_gate": ("lstm", "rum", 256, 256, 128, {"rum_no_update_gate": True}),
    "pointer_gen_rum_tiny": ("lstm", "rum", 64, 64, 32, {}),
}
SETTINGS = [
    "--task", "rum_summarization", "--criterion", "pointer_coverage_loss", "--optimizer",
    "rum_adagrad", "--lr", "0.15", "--clip-norm", "2.0", "--batch-size", "16",
]  # fmt: skip


def from_flags(arch, *extra):
    arguments = ["data", "--user-dir", USER_DIR, "--arch", arch, *SETTINGS, *extra]
    args = options.parse_args_and_arch(options.get_training_parser(), arguments)
    return convert_namespace_to_omegaconf(args)


def test_there_is_a_config_for_each():
    assert {path.stem for path in CONFIGS.iterdir()} == {*ARCHS, "cnn_dm"}


@pytest.mark.parametrize("arch", ARCHS)
def test_yaml_is_the_arch(arch):
    """Every option of model, criterion, optimizer and task, and what decides on the updates."""
    hydra_init(arch)
    with initialize_config_dir(str(CONFIGS), version_base="1.1"):
        yaml = compose(arch, overrides=["task.data=data"])
    add_defaults(yaml)
    flags = from_flags(arch)
    for part in ("model", "criterion", "optimizer", "task"):
        found, expected = (
            OmegaConf.to_container(cfg[part], resolve=False, enum_to_str=True)
            for cfg in (yaml, flags)
        )
        # What fairseq takes over from its other parts is still a reference in YAML.
        fixed = {k: v for k, v in found.items() if not (isinstance(v, str) and v[:2] == "${")}
        assert fixed == {k: expected[k] for k in fixed}, part
    assert yaml.optimization.lr == flags.optimization.lr
    assert yaml.optimization.clip_norm == flags.optimization.clip_norm
    assert yaml.dataset.batch_size == flags.dataset.batch_size

    model = flags.model
    encoder, decoder, *sizes, options_of_rum = ARCHS[arch]
    assert (model.encoder_rnn_unit, model.decoder_rnn_unit) == (encoder, decoder)
    found = [model.encoder_hidden_size, model.decoder_hidden_size, model.embed_dim]
    assert found == sizes
    rum = {name: value for name, value in model.items() if name.startswith("rum_") and value}
    assert rum == options_of_rum


def test_flags_go_before_the_archs_defaults():
    model = from_flags("pointer_gen_rum_no_gate", "--rum-no-update-gate", "--embed-dim", "7").model
    assert model.rum_no_update_gate and model.embed_dim == 7
    assert from_flags("pointer_gen_enc_rum", "--encoder-rnn-unit", "gru").model.embed_dim == 128


def test_hydra_train_is_train(tmp_path):
    """The same parameters after two updates."""
    data = prepare(tmp_path, make_pairs(6), "--vocabulary", 20)
    run_hydra(
        "summarization", "pointer_gen_rum_tiny", tmp_path, f"task.data={data}",
        "dataset.num_workers=0", "dataset.disable_validation=true",
    )  # fmt: skip
    run_fairseq(
        "train", data, "--user-dir", USER_DIR, "--arch", "pointer_gen_rum_tiny", *SETTINGS,
        "--max-update", 2, "--save-dir", tmp_path / "flags", "--cpu", "--num-workers", 0,
        "--no-progress-bar", "--disable-validation",
    )  # fmt: skip
    hydra, flags = (
        torch.load(tmp_path / run / "checkpoint_last.pt", weights_only=True)["model"]
        for run in ("hydra", "flags")
    )
    assert hydra.keys() == flags.keys()
    assert all(torch.equal(hydra[name], flags[name]) for name in flags)
