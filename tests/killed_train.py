"""fairseq-train that is killed on the way: killed_train.py WHEN NUMBER FRACTION OPTION ...

WHEN is ``step``: at a fraction of the time of a step after update NUMBER; ``save``: at a fraction
of the bytes of the NUMBER-th checkpoint that is written; ``copy``: the same for the NUMBER-th copy
of one; ``never``.
"""

import os
import shutil
import signal
import sys
import threading
import time

import torch


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class DyingFile:
    """Passes on what is written, until so many bytes have been."""

    def __init__(self, file, size):
        self.file, self.left = file, size

    def write(self, data):
        data = bytes(data)
        self.file.write(data[: self.left])
        self.left -= len(data)
        if self.left <= 0:
            self.file.flush()
            die()
        return len(data)

    def __getattr__(self, name):
        return getattr(self.file, name)


def die_in_save(number, fraction):
    plain = torch.save
    calls = []

    def save(value, file, *args, **kwargs):
        calls.append(None)
        if len(calls) == number:
            import io

            whole = io.BytesIO()
            plain(value, whole, *args, **kwargs)
            file = DyingFile(file, int(fraction * whole.tell()) + 1)
        return plain(value, file, *args, **kwargs)

    torch.save = save


def die_in_copy(number, fraction):
    plain = shutil.copyfile
    calls = []

    def copyfile(source, target, **kwargs):
        calls.append(None)
        if len(calls) == number:
            with open(source, "rb") as whole, open(target, "wb") as half:
                data = whole.read()
                half.write(data[: int(fraction * len(data))])
            die()
        return plain(source, target, **kwargs)

    shutil.copyfile = copyfile


def die_in_step(number, fraction):
    from fairseq.trainer import Trainer

    plain = Trainer.train_step
    start = []

    def train_step(self, *args, **kwargs):
        updates = self.get_num_updates()
        if updates == number - 1:
            start.append(time.monotonic())
        if updates == number:
            delay = fraction * (time.monotonic() - start[0])
            threading.Thread(target=lambda: (time.sleep(delay), die()), daemon=True).start()
        return plain(self, *args, **kwargs)

    Trainer.train_step = train_step


if __name__ == "__main__":
    when, number, fraction, *options = sys.argv[1:]
    plans = {"step": die_in_step, "save": die_in_save, "copy": die_in_copy}
    if when in plans:
        plans[when](int(number), float(fraction))
    sys.argv = ["fairseq-train", *options]
    from fairseq_cli.train import cli_main

    cli_main()
