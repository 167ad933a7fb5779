"""A small corpus of texts and summaries with names that no vocabulary has, made from a seed."""

import random

from conftest import USER_DIR, run_fairseq

FILLERS = "the old man and a young woman went to see their big house near a river today".split()
SIZES = ["--embed-dim", 12, "--encoder-hidden-size", 12, "--decoder-hidden-size", 14]


def make_pairs(count, seed=1):
    """Texts with two names each, new ones in each pair, and a summary that says who met whom."""
    random_ = random.Random(seed)
    sources, targets = [], []
    for index in range(count):
        first, second = (f"{kind}{seed}x{index:03d}" for kind in ("Anna", "Bert"))
        words = [random_.choice(FILLERS) for _ in range(random_.randint(6, 14))]
        place = random_.randint(0, len(words) - 1)
        words[place:place] = [first, "met" if index % 2 else "saw", second]
        sources.append(" ".join(words))
        targets.append(f"{first} met {second}" if index % 2 else f"{second} seen by {first} today")
    return sources, targets


def write_split(folder, split, sources, targets):
    for side, lines in (("source", sources), ("target", targets)):
        (folder / f"{split}.{side}").write_text("".join(f"{line}\n" for line in lines))
    return folder / split


def prepare(folder, pairs, *extra, **splits):
    """``fairseq-rum prepare summarization`` of (sources, targets) in train and other splits."""
    from fairseq_rum.cli.main import main

    arguments = ["prepare", "summarization", "--destdir", str(folder / "data-bin")]
    arguments += ["--tokenized", *map(str, extra)]
    for split, (sources, targets) in {"train": pairs, **splits}.items():
        write_split(folder, split, sources, targets)
        files = [str(folder / f"{split}.{side}") for side in ("source", "target")]
        arguments += [f"--{split}", *files]
    assert main(arguments) == 0
    return folder / "data-bin"


def preprocess(folder, pairs):
    """fairseq-preprocess with one plain dictionary, as for the stock translation task."""
    write_split(folder, "train", *pairs)
    run_fairseq(
        "preprocess", "-s", "source", "-t", "target", "--trainpref", folder / "train",
        "--validpref", folder / "train", "--joined-dictionary", "--destdir", folder / "plain",
    )  # fmt: skip
    return folder / "plain"


def train_arguments(data, save_dir, *extra, task="rum_summarization", arch="pointer_gen_rum"):
    return [
        data, "--user-dir", USER_DIR, "--task", task, "--arch", arch, *SIZES, "--criterion",
        "pointer_coverage_loss", "--optimizer", "rum_adagrad", "--lr", 0.15, "--clip-norm", 2,
        "--batch-size", 4, "--save-dir", save_dir, "--no-progress-bar", "--log-interval", 1,
        "--cpu", "--num-workers", 0, "--required-batch-size-multiple", 1, "--no-epoch-checkpoints",
        *extra,
    ]  # fmt: skip


def build_task(data, **options):
    """``rum_summarization`` as fairseq sets it up."""
    from fairseq_rum.tasks import rum_summarization

    cfg = rum_summarization.RumSummarizationConfig(
        data=str(data), dataset_impl="mmap", train_subset="train", **options
    )
    return rum_summarization.RumSummarizationTask.setup_task(cfg)


def build_model(task, **options):
    """A small ``pointer_gen_rum``."""
    from fairseq_rum.models import pointer_gen_rum

    sizes = {"embed_dim": 12, "encoder_hidden_size": 12, "decoder_hidden_size": 14}
    cfg = pointer_gen_rum.PointerGeneratorConfig(**{**sizes, **options})
    return pointer_gen_rum.PointerGenerator.build_model(cfg, task)
