"""Draw what models that were trained on associative_recall answer to one string (Figure 1a).

Letters and digits are shown as emoji of the font that comes with matplotlib, or as themselves with
--letters. Below the string are the most likely answers of each model with their probabilities, the
right one green. Train with --query position for the question of the paper's figure.

  fairseq-rum plot memory --checkpoints RUM=checkpoints/position/rum LSTM=checkpoints/position/lstm \\
      --example 3 --out memory.png
"""  # noqa: E501, a command is one line

from __future__ import annotations

import argparse

from fairseq_rum.cli import figures
from fairseq_rum.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this subcommand."""
    figures.add_checkpoints(parser)
    parser.add_argument(
        "--example", type=int, default=0, metavar="N", help="which one of the split (default: 0)"
    )
    parser.add_argument("--split", default="test", metavar="NAME", help="default: test")
    parser.add_argument("--letters", action="store_true", help="letters and digits, no emoji")
    parser.add_argument(
        "--top", type=int, default=4, metavar="N", help="answers that are shown (default: 4)"
    )
    figures.add_out(parser)


def run(args: argparse.Namespace) -> int:
    """Ask the models and write the figure."""
    figures.prepare(args)
    if args.top < 1:
        raise InputError(f"--top must be at least 1, got {args.top}")
    import torch

    from fairseq_rum.cli.trained import load_all
    from fairseq_rum.data.memory_tasks import AssociativeRecall
    from fairseq_rum.viz.memory import Answer, plot_memory, symbol_names

    models = load_all(args)
    task = models[0].task
    for trained in models:
        problem = getattr(trained.task, "problem", None)
        if not isinstance(problem, AssociativeRecall):
            raise InputError(f"{trained.path}: trained on another task than associative_recall")
        if problem != task.problem:
            raise InputError(
                f"--checkpoints: {trained.label} was trained on strings of another kind"
            )
    task.load_dataset(args.split)
    dataset = task.dataset(args.split)
    if not 0 <= args.example < len(dataset):
        raise InputError(f"--example {args.example}: {args.split} has 0 to {len(dataset) - 1}")
    sample = dataset.collater([args.example])
    tokens = sample["net_input"]["src_tokens"]
    string, asked, right = task.problem.question(tokens[0].tolist())
    answers = []
    with torch.no_grad():
        for trained in models:
            probabilities = trained.model(tokens)[0, -1].double().softmax(-1)
            answers.append(Answer(trained.label, probabilities.numpy()))

    names = symbol_names(task.problem.letters, not args.letters)
    shown = [names[symbol] for symbol in string]
    question = f"Which symbol is at position {asked + 1}?"
    if task.problem.query == "letter":
        names = names[task.problem.letters :]
        question = f"Which symbol comes after {shown[asked - 1]}?"
    figure = plot_memory(shown, question, asked, names, right, answers, args.top)
    figures.save(figure, args.out)
    print(f"{args.out}: {' '.join(shown)} {question} {names[right]}")
    for answer in answers:
        best = int(answer.probabilities.argmax())
        print(f"{answer.label}: {names[best]} with {100 * answer.probabilities[best]:.2f}%")
    return 0
