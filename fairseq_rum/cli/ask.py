"""Answer questions about stories that are typed in, with a model of the task babi_qa.

A line that ends with "?" is a question about the sentences before it, any other line is a sentence
of the story, and an empty line begins a new story. With attention, its weights are shown beside the
sentences. Lines may come from a file or another program as well:

  printf 'Mary went to the garden.\\nWhere is Mary?\\n' | fairseq-rum ask --checkpoint FILE
"""

from __future__ import annotations

import argparse
import io
import sys
from typing import TYPE_CHECKING, Any

from fairseq_rum.cli import figures
from fairseq_rum.data.babi import Sentence, split_words
from fairseq_rum.errors import InputError

if TYPE_CHECKING:
    from fairseq_rum.cli.trained import Trained


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fairseq-rum ask``."""
    figures.add_checkpoints(parser, several=False)


def run(args: argparse.Namespace) -> int:
    """Read lines until there are no more, and answer the questions."""
    from fairseq_rum.cli.trained import load_all

    (trained,) = load_all(args)
    conversation = Conversation(trained)
    interactive = sys.stdin.isatty()
    if interactive:
        print('Sentences end with ".", questions with "?"; an empty line begins a new story.')
        if trained.model.attention is None:
            print("This model has no attention to show.")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    for number, line in enumerate(sys.stdin, 1):
        try:
            reply = conversation.say(line.lstrip("\ufeff"))
        except InputError as error:
            if not interactive:
                raise InputError(f"line {number}: {error}") from error
            reply = str(error)
        if reply:
            print(reply, flush=True)
    return 0


class Conversation:
    """A story as it is told, and a model that answers questions about it.

    Args:
        trained: a model ``rum_qa``.

    Raises:
        InputError: it is another model.
    """

    def __init__(self, trained: Trained) -> None:
        if not hasattr(trained.model, "answer"):
            raise InputError(f"{trained.path}: no model of questions, which is --arch rum_qa")
        self.model = trained.model
        self.task = trained.task
        self.story: list[Sentence] = []

    def say(self, line: str) -> str:
        """Take one line; what there is to reply, nothing for a sentence.

        Raises:
            InputError: the model doesn't know some of the words. The line is left out.
        """
        line = line.strip()
        if not line:
            self.story = []
            return ""
        words = split_words(line)
        dictionary = self.task.words
        unknown = [repr(word) for word in words if dictionary.index(word) == dictionary.unk()]
        if unknown:
            raise InputError(f"not a word of the training data: {', '.join(unknown)}")
        if not words:
            raise InputError("there is no word in this line")
        if not line.endswith("?"):
            self.story.append(words)
            return ""
        return self._answer(words)

    def _answer(self, question: Sentence) -> str:
        import torch

        dictionary = self.task.words
        tokens: list[Any] = []
        for sentence in [*self.story, question]:
            tokens += [*map(dictionary.index, sentence), dictionary.eos()]
        with torch.no_grad():
            logits, weights = self.model.answer(torch.tensor([tokens]), torch.tensor([len(tokens)]))
        probability, number = logits[0].softmax(0).max(0)
        lines = [f"{self.task.answer(int(number))} ({probability:.1%})"]
        if weights is not None and self.story:
            # The last step is the question's.
            of_story = weights[0, -1 - len(self.story) : -1].tolist()
            lines += [
                f"  {weight:.2f} {'#' * round(20 * weight):20} {' '.join(sentence)}"
                for weight, sentence in zip(of_story, self.story)
            ]
        return "\n".join(lines)
