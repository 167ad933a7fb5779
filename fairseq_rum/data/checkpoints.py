"""Checkpoints that a fault cannot spoil: whole when they are there, named when they are damaged."""

from __future__ import annotations

import functools
import os
import re
import shutil
import zipfile
from typing import Any

from fairseq_rum.compat import require_fairseq
from fairseq_rum.errors import InputError

require_fairseq()

from fairseq import checkpoint_utils  # noqa: E402
from fairseq.file_io import PathManager  # noqa: E402


def protect_checkpoints() -> None:
    """Do both of the below; calling it again changes nothing."""
    copy_checkpoints_whole()
    name_damaged_checkpoints()


def copy_checkpoints_whole() -> None:
    """Let a copy of a checkpoint take its place only when it is whole.

    fairseq writes a checkpoint under a temporary name and renames it, but then copies it onto
    ``checkpoint_last.pt`` and the like in place: killed there, it leaves half a file where a whole
    one was.
    """
    if getattr(PathManager.copy, "whole", False):
        return
    plain_copy = PathManager.copy

    def copy(src_path: str, dst_path: str, overwrite: bool = False) -> bool:
        if not PathManager.supports_rename(dst_path):
            return plain_copy(src_path, dst_path, overwrite)
        shutil.copyfile(src_path, f"{dst_path}.tmp")
        os.replace(f"{dst_path}.tmp", dst_path)
        return True

    copy.whole = True  # type: ignore[attr-defined]
    PathManager.copy = staticmethod(copy)


def name_damaged_checkpoints() -> None:
    """Let a checkpoint that cannot be loaded raise one sentence that names it, an InputError.

    torch does not look at the checksums in a checkpoint, and loads one with a changed byte.
    """
    load = checkpoint_utils.load_checkpoint_to_cpu
    if hasattr(load, "__wrapped__"):
        return

    @functools.wraps(load)
    def load_checkpoint_to_cpu(path: str, *args: Any, **kwargs: Any) -> Any:
        try:
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as records:
                    damaged = records.testzip()
                if damaged is not None:
                    raise ValueError(f"the checksum of {damaged} is wrong")
            return load(path, *args, **kwargs)
        except FileNotFoundError:
            raise
        except Exception as error:  # torch raises what its readers raise: KeyError, OSError ...
            refused = re.search(r"GLOBAL (\S+)", str(error))
            if refused:
                why = f"holds {refused[1]}, which no checkpoint needs, and is not loaded"
            else:
                lines = str(error).strip().splitlines() or [type(error).__name__]
                why = f"is damaged or no checkpoint ({lines[0]})"
            raise InputError(f"{path} {why}") from error

    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu
