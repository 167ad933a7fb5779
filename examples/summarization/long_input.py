"""One update of decRUM at the size of research papers: 1,000 steps in, 100 steps out.

Prepares made-up texts of that size with a vocabulary of 50,000 words, and measures forward and
backward pass of one batch, with the time of each and the highest memory of the process.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict

sys.path[:0] = map(str, Path(__file__).resolve().parents[:3])
from run_tools import commit, hardware  # noqa: E402
from summary_corpora import write  # noqa: E402, found by the line above

SOURCE, TARGET, VOCABULARY = 1000, 100, 50000


def prepare(folder: Path, batch: int) -> Path:
    """A data directory with one batch, and as many other texts as the vocabulary needs."""
    from fairseq_rum.cli.main import main as fairseq_rum

    draw = random.Random(1)
    words = [f"w{i}" for i in range(VOCABULARY)]
    texts = [words[i : i + SOURCE] for i in range(0, VOCABULARY, SOURCE)]
    texts += [draw.choices(words, k=SOURCE) for _ in range(batch)]
    files = [
        write(folder / "texts", map(" ".join, texts)),
        write(folder / "summaries", (" ".join(draw.sample(text, TARGET - 1)) for text in texts)),
    ]
    data = folder / "data-bin"
    command = ["prepare", "summarization", "--tokenized", "--destdir", str(data)]
    command += ["--source-length", str(SOURCE), "--target-length", str(TARGET)]
    if fairseq_rum([*command, "--train", *files]):
        raise RuntimeError("the texts could not be prepared")
    return data


def measure(data: Path, arch: str, batch: int, gpu: bool) -> Dict[str, Any]:
    """Seconds of the two passes, and the highest memory in GiB."""
    import torch
    from fairseq import options, tasks, utils
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    command = [str(data), "--task", "rum_summarization", "--arch", arch, "--coverage"]
    command += ["--criterion", "pointer_coverage_loss", "--batch-size", str(batch)]
    args = options.parse_args_and_arch(options.get_training_parser(), command)
    cfg = convert_namespace_to_omegaconf(args)
    task = tasks.setup_task(cfg.task)
    task.load_dataset("train")
    model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)
    dataset = task.dataset("train")
    sample = dataset.collater([dataset[len(dataset) - 1 - i] for i in range(batch)])
    if gpu:
        model, sample = model.cuda(), utils.move_to_cuda(sample)
        torch.cuda.synchronize()
    start, processor = time.perf_counter(), time.process_time()
    loss, _, _ = criterion(model, sample)
    loss.item()  # waits for a GPU
    middle = time.perf_counter()
    loss.backward()
    if gpu:
        torch.cuda.synchronize()
    end, processor = time.perf_counter(), time.process_time() - processor
    if gpu:
        memory = torch.cuda.max_memory_allocated() / 2**30
    else:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {
        "arch": arch,
        "batch": batch,
        "steps": [sample["net_input"]["src_tokens"].size(1), sample["target"].size(1)],
        "forward_seconds": round(middle - start, 2),
        "backward_seconds": round(end - middle, 2),
        # Where others share the cores, this is nearer to what the two passes take.
        "processor_seconds": round(processor, 2),
        "memory_gib": round(memory, 2),
    }


def main() -> int:
    """Do what the options say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="pointer_gen_rum")
    parser.add_argument("--batch-size", type=int, default=16, metavar="N")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--gpu", action="store_true", help="use a CUDA GPU")
    parser.add_argument(
        "--results", type=Path, default=Path(__file__).resolve().parent / "results", metavar="DIR"
    )
    args = parser.parse_args()
    import torch

    import fairseq_rum  # noqa: F401, registers the task

    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        data = prepare(Path(folder), args.batch_size)
        result = measure(data, args.arch, args.batch_size, args.gpu)
    result["hardware"], result["commit"] = hardware(args.threads, args.gpu), commit()
    args.results.mkdir(parents=True, exist_ok=True)
    (args.results / "long_input.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
