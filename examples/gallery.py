"""Makes docs/gallery.md: trains small models, draws each figure, and says its command below it.

A few minutes in all on one core. What was interrupted goes on from its last checkpoint, what is
done stays. Checkpoints go to --work. Where there is a browser (Chromium), the page of attn-vis is
looked at in two widths.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List

from PIL import Image

sys.path[:0] = map(str, Path(__file__).resolve().parents[:2])
from run_tools import ROOT, execute, hardware, last_line, read  # noqa: E402
from summarization.summary_corpora import names, relative  # noqa: E402, found by the line above

from fairseq_rum.cli.main import main as fairseq_rum  # noqa: E402
from fairseq_rum.data.training_log import read_log  # noqa: E402

COMMON = (
    "--cpu --num-workers 0 --data-buffer-size 0 --no-epoch-checkpoints --save-interval-updates 250 "
    "--keep-interval-updates 1 --log-format json --seed 1"
)
RECALL = (
    "--task associative_recall --recall-length 10 --arch rum_memory --hidden-size 50 --criterion "
    "memory_accuracy --optimizer rmsprop --lr 0.001 --batch-size 128 --valid-examples 1000 "
    "--max-update 1500 --log-interval 50"
)
COPYING = (
    "--task copying_memory --delay 30 --arch rum_memory --hidden-size 50 --criterion "
    "memory_accuracy --optimizer rmsprop --lr 0.001 --batch-size 64 --train-examples 10000 "
    "--max-update 1000 --log-interval 25"
)
LANGUAGE = (
    "WORK/text/data-bin --task stateful_language_modeling --tokens-per-sample 50 --batch-size 32 "
    "--arch rum_lm --decoder-embed-dim 64 --decoder-hidden-size 96 --criterion bits_per_token "
    "--optimizer adam --lr 0.005 --clip-norm 5 --max-update 500 --log-interval 25"
)
SUMMARIES = (
    "WORK/names/data-bin --task rum_summarization --embed-dim 32 --encoder-hidden-size 48 "
    "--decoder-hidden-size 64 --criterion pointer_coverage_loss --optimizer rum_adagrad --lr 0.15 "
    "--clip-norm 2 --batch-size 10 --disable-validation --max-update 400 --log-interval 20"
)
LOOK = "--log-dynamics --tensorboard-logdir WORK/NAME/board"

RUNS = {
    "recall-rum1": f"{RECALL} --rnn-unit rum --rum-lambda 1 {LOOK}",
    "recall-rum0": f"{RECALL} --rnn-unit rum --rum-lambda 0 {LOOK}",
    "recall-lstm": f"{RECALL} --rnn-unit lstm {LOOK}",
    "recall-goru": f"{RECALL} --rnn-unit goru",
    "position-rum1": f"{RECALL} --query position --rnn-unit rum --rum-lambda 1",
    "position-lstm": f"{RECALL} --query position --rnn-unit lstm",
    "copying-rum1": f"{COPYING} --rnn-unit rum --rum-lambda 1 --rum-eta 1",
    "copying-lstm": f"{COPYING} --rnn-unit lstm",
    "language-rum": f"{LANGUAGE} --rnn-unit rum --rum-activation tanh",
    "language-lstm": f"{LANGUAGE} --rnn-unit lstm",
    "summary-rum": f"{SUMMARIES} --arch pointer_gen_rum {LOOK}",
    "summary-lead": f"{SUMMARIES} --arch pointer_gen_lstm {LOOK}",
}
SCORES = ("accuracy", "bpc", "loss")


@dataclass(frozen=True)
class Figure:
    """A figure of the page.

    Attributes:
        file: where it goes.
        title: above it.
        text: what is to be seen, whatever comes out.
        command: of fairseq-rum, without ``--out``.
    """

    file: str
    title: str
    text: str
    command: str


FIGURES = [
    Figure("activations.png", "Derivatives of the activations (Figure 3 of the paper)",
           "How fast the candidate's activation lets gradients vanish.", "plot activations"),
    Figure("copying.png", "Copying, T = 30 (as in Figure 4)",
           "The dashed line is the best guess without memory.",
           "plot curves --runs RUM=WORK/copying-rum1 LSTM=WORK/copying-lstm --metric loss --log-y "
           "--baseline baseline:memoryless"),
    Figure("recall.png", "Associative recall, T = 10",
           "Accuracy on the training batches; 10% is a guess among the digits.",
           "plot curves --runs 'RUM, lambda 1=WORK/recall-rum1' 'RUM, lambda 0=WORK/recall-rum0' "
           "LSTM=WORK/recall-lstm GORU=WORK/recall-goru --metric accuracy --baseline 10:guess"),
    Figure("angles.png", "Angles of the rotation (as in Figure 5b and c)",
           "How cos(theta) of a batch is distributed at every step, before and after training.",
           "plot angles --checkpoints 'lambda 0=WORK/recall-rum0' 'lambda 1=WORK/recall-rum1' "
           "--initial"),
    Figure("cosines.png", "The mean angle while training",
           "Read from TensorBoard's files.",
           "plot curves --runs 'lambda 1=WORK/recall-rum1/board' 'lambda 0=WORK/recall-rum0/board' "
           "--metric cos_theta"),
    Figure("gradients.png", "Gradients and states (as in Figure 6)",
           "From runs with --log-dynamics. The answer is read at the last step.",
           "plot gradients --runs 'lambda 1=WORK/recall-rum1' 'lambda 0=WORK/recall-rum0' "
           "LSTM=WORK/recall-lstm --updates 50 1500"),
    Figure("gradients_summary.png", "The same of encoder and decoder",
           "LSTM encoders, and a decoder of either unit.",
           "plot gradients --runs decRUM=WORK/summary-rum LEAD=WORK/summary-lead --updates 400"),
    Figure("landscape.png", "The loss around the weights of the rotation (as in Figure 8)",
           "Along one random direction, through the weights before and after training.",
           "plot landscape --checkpoints RUM=WORK/recall-rum1 GORU=WORK/recall-goru"),
    Figure("landscape2.png", "The same along two directions, each row of the weights' own norm",
           "The cross is where the weights are.",
           "plot landscape --checkpoints RUM=WORK/recall-rum1 GORU=WORK/recall-goru --dimensions 2 "
           "--points 15 --filter-normalize"),
    Figure("memory.png", "What is at this position? (Figure 1a)",
           "One string of the test split, and the most likely answers.",
           "plot memory --checkpoints RUM=WORK/position-rum1 LSTM=WORK/position-lstm"),
    Figure("bpc.png", "Language models on the topics of Python's help()",
           "Bits per character of the training text.",
           "plot curves --runs RUM=WORK/language-rum LSTM=WORK/language-lstm --metric bpc"),
    Figure("kernels.png", "Kernels of the language model (as in Figure 5a)",
           "Below the recurrent ones the strip along the diagonal.",
           "plot kernels --checkpoint WORK/language-rum"),
    Figure("p_gen.png", "Generate or copy?",
           "The mean of p_gen while two models learn to summarize 50 texts with names that are not "
           "in the vocabulary, read from TensorBoard's files. A point is a batch of summaries of "
           "one length: two of four words, or of six, can only be copied (the end counts as one).",
           "plot curves --runs decRUM=WORK/summary-rum/board LEAD=WORK/summary-lead/board "
           "--metric p_gen"),
    Figure("copied.html", "What the summaries copied",
           "A page for the browser, of the same two models, 1400 and 400 pixels wide.",
           "attn-vis --runs LEAD=WORK/summary-lead/attention.jsonl "
           "decRUM=WORK/summary-rum/attention.jsonl --generated "
           "WORK/summary-rum/generate-test.txt --limit 4"),
]  # fmt: skip
SHOTS = {"copied_wide.png": (1400, 920), "copied_narrow.png": (400, 920)}
LIMIT = 1_000_000
"""Bytes of all files of the gallery together."""


def main() -> int:
    """Do what is left to do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=ROOT / "checkpoints" / "gallery")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of the page")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="default: 1")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    prepare(args.work)
    commands = {name: train(name, args) for name in RUNS}
    for name in ("summary-rum", "summary-lead"):
        generate(name, args)
    pictures = args.out / "gallery"
    pictures.mkdir(parents=True, exist_ok=True)
    page = [HEAD]
    for figure in FIGURES:
        page.append(draw(figure, pictures, args))
    page.append(runs_section(commands, args))
    for path in pictures.glob("*.png"):
        # A third of the size, and nothing to be seen of it.
        Image.open(path).convert("RGB").quantize(192).save(path, optimize=True)
    (args.out / "gallery.md").write_text("\n".join(page), encoding="utf-8")
    size = sum(path.stat().st_size for path in pictures.iterdir())
    print(f"{args.out / 'gallery.md'}: {len(FIGURES)} figures, {size:,} bytes")
    return int(size > LIMIT)


HEAD = """# Gallery

Figures of real runs, small ones: each takes less than a minute. They show what the commands draw,
not what the units can do; for that see the results of the [examples](../examples).
`python examples/gallery.py` makes all of this page.
"""


def prepare(work: Path) -> None:
    """The data of the language models and of the summaries."""
    if not (work / "text" / "data-bin").exists():
        from pydoc_data.topics import topics

        folder = work / "text"
        folder.mkdir(exist_ok=True)
        text = "\n".join(topics[name] for name in sorted(topics))
        cut = int(len(text) * 0.95)
        for split, part in (("train", text[:cut]), ("valid", text[cut:])):
            (folder / split).write_text(part, encoding="utf-8")
        rum(f"prepare chars --trainpref {folder / 'train'} --validpref {folder / 'valid'} "
            f"--destdir {folder / 'data-bin'}")  # fmt: skip
    if not (work / "names" / "data-bin").exists():
        folder = work / "names"
        folder.mkdir(exist_ok=True)
        files = " ".join(names(folder, folder))
        rum(f"prepare summarization --min-count 3 --tokenized {files} --destdir "
            f"{relative(folder / 'data-bin')}")  # fmt: skip


def train(name: str, args: argparse.Namespace) -> str:
    """Train a model unless that is done, and return the command."""
    folder = args.work / name
    work = relative(args.work)
    options = RUNS[name].replace("WORK", work).replace("NAME", name)
    command = f"fairseq-train {options} --user-dir fairseq_rum {COMMON} --save-dir {work}/{name}"
    done = folder / "done"
    if read(done) == command:
        return command
    if read(folder / "command") != command:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "command").write_text(command)
    print(f"== {name}", flush=True)
    run(shlex.split(command), folder / "fairseq.log", args.threads)
    done.write_text(command)
    return command


def generate(name: str, args: argparse.Namespace) -> None:
    """Summaries with attention of a model, unless they are there."""
    folder, work = args.work / name, relative(args.work)
    if (folder / "attention.jsonl").exists():
        return
    command = (
        f"fairseq-generate {work}/names/data-bin --user-dir fairseq_rum --task rum_summarization "
        f"--path {work}/{name}/checkpoint_last.pt --batch-size 10 --beam 4 --max-len-b 30 --cpu "
        f"--num-workers 0 --results-path {work}/{name} --attention-path "
    )
    run(shlex.split(f"{command}{work}/{name}/new.jsonl"), folder / "generate.log", args.threads)
    (folder / "new.jsonl").rename(folder / "attention.jsonl")


def draw(figure: Figure, pictures: Path, args: argparse.Namespace) -> str:
    """Draw a figure, and return its part of the page."""
    command = figure.command.replace("WORK", relative(args.work))
    path = pictures / figure.file
    said = rum(f"{command} --out {shlex.quote(relative(path))}")
    lines = [f"## {figure.title}", "", figure.text, ""]
    if path.suffix == ".html":
        screenshots(path)
        lines += [f"![{name}](gallery/{name})" for name in SHOTS if (pictures / name).exists()]
    else:
        lines += [f"![{figure.title}](gallery/{figure.file})"]
    shown = f"fairseq-rum {command} --out {figure.file}"
    lines += ["", "```", f"$ {shown}", *said.split("\n")[1:], "```", ""]
    return "\n".join(line.rstrip() for line in lines)


def screenshots(page: Path) -> None:
    """Pictures of a page in a browser, where there is one."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no browser: the pictures of attn-vis stay as they are")
        return
    for name, (width, height) in SHOTS.items():
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                   f"--window-size={width},{height}", f"--screenshot={page.parent / name}",
                   page.resolve().as_uri()]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=120)


def runs_section(commands: Dict[str, str], args: argparse.Namespace) -> str:
    """A table of the runs with what they came to, and their commands."""
    lines = ["## The runs", "", f"{hardware(args.threads, False)}; seed 1.", ""]
    lines += ["| run | updates | at the end of training |", "|---|---|---|"]
    for name in commands:
        log = read_log(args.work / name / "fairseq.log")
        last = log.points["train_inner"][-1]
        scores = ", ".join(f"{score} {last[score]:g}" for score in SCORES if score in last)
        lines.append(f"| {name} | {last['num_updates']:g} | {scores} |")
    lines += ["", "```", *(f"$ {command}" for command in commands.values()), "```", ""]
    return "\n".join(lines)


def run(command: List[str], output: Path, threads: int) -> None:
    """Run one of fairseq's commands; the end of this script if it fails."""
    start = output.stat().st_size if output.exists() else 0
    if execute(command, output, threads):
        sys.exit(f"{output}: {last_line(output, start)}")


def rum(arguments: str) -> str:
    """Run a command of fairseq-rum in this process, and return what it said."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = fairseq_rum(shlex.split(arguments))
    if status:
        sys.exit(f"fairseq-rum {arguments}: status {status}")
    return said.getvalue().strip()


if __name__ == "__main__":
    sys.exit(main())
