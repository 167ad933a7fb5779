"""Binarize pairs of texts and summaries by sentencepiece, for fairseq's own ``translation`` task.

The model is learned on train and kept as ``spm.model`` in the data directory. fairseq turns pieces
into text again with ``--bpe sentencepiece --sentencepiece-model DIR/spm.model``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from fairseq_rum.cli.binarize import (  # noqa: E402, found by the line above
    add_destination,
    all_or_nothing,
    check_destination,
    prefixes,
    run_preprocess,
)
from fairseq_rum.data.summaries import read_aligned  # noqa: E402
from fairseq_rum.errors import InputError  # noqa: E402

SIDES = ("source", "target")


def main() -> int:
    """Do what the options say; 2 for bad input."""
    parser = argparse.ArgumentParser(description=__doc__)
    for split in ("train", "valid", "test"):
        parser.add_argument(
            f"--{split}", metavar="FILE", nargs=2, required=True, help="texts and summaries"
        )
    parser.add_argument("--pieces", type=int, default=8000, metavar="N", help="default: 8000")
    parser.add_argument("--source-length", type=int, default=400, metavar="N", help="default: 400")
    add_destination(parser)
    args = parser.parse_args()
    try:
        check_destination(args.destdir, args.workers)
        with all_or_nothing(args.destdir) as folders:
            prepare(args, *folders)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def prepare(args: argparse.Namespace, data: Path, scratch: Path) -> None:
    """Learn pieces, write them, and call fairseq-preprocess."""
    import sentencepiece

    pairs = {
        split: list(read_aligned(*getattr(args, split))) for split in ("train", "valid", "test")
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(
            text for pair in pairs["train"] for text in (pair.text(), *pair.targets)
        ),
        model_prefix=str(data / "spm"),
        vocab_size=args.pieces,
        hard_vocab_limit=False,  # a small corpus has fewer
        character_coverage=1.0,
        minloglevel=1,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(data / "spm.model"))
    for split, rows in pairs.items():
        for side in SIDES:
            with open(scratch / f"{split}.{side}", "w", encoding="utf-8", newline="\n") as file:
                for pair in rows:
                    text = pair.text() if side == "source" else pair.targets[0]
                    pieces = processor.encode(text, out_type=str)
                    limit = args.source_length if side == "source" else len(pieces)
                    file.write(" ".join(pieces[:limit]) + "\n")
    command = ["--source-lang", SIDES[0], "--target-lang", SIDES[1], "--joined-dictionary"]
    command += ["--destdir", str(data), "--workers", str(args.workers)]
    run_preprocess([*command, *prefixes(list(pairs), scratch)])


if __name__ == "__main__":
    sys.exit(main())
