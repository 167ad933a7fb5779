"""Reads the scalars in TensorBoard's event files, which fairseq writes with --tensorboard-logdir.

A folder has a sub-folder for each split, and a file for each process that wrote there. A file is a
sequence of records: length (8 bytes), its checksum (4), an Event in protobuf, its checksum (4).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple, Union

from fairseq_rum.errors import InputError

_FILES = "events.out.tfevents.*"


def has_events(folder: Union[str, Path]) -> bool:
    """Whether there are event files of fairseq in a folder."""
    return any(Path(folder).glob(f"*/{_FILES}"))


def read_scalars(folder: Union[str, Path]) -> List[Tuple[str, Dict[str, float]]]:
    """Split and metrics, with ``num_updates``, of every update for which there are any.

    Of two values for one update, as in a resumed run, the one that was written later counts. They
    come in the order of updates, those of training before those of evaluation.

    Raises:
        InputError: tensorboardX is missing, or a file is no event file.
    """
    points: Dict[Tuple[int, bool, str], Dict[str, float]] = {}
    for path in sorted(Path(folder).glob(f"*/{_FILES}"), key=_begun):
        split = path.parent.name
        for event in _events(path):
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    key = (event.step, not split.startswith("train"), split)
                    points.setdefault(key, {"num_updates": float(event.step)})
                    points[key][value.tag] = value.simple_value
    return [(key[2], points[key]) for key in sorted(points)]


def _begun(path: Path) -> Tuple[float, str]:
    """When a file was begun, which its name says: copying it may change its own time."""
    time = path.name[len(_FILES) - 1 :].partition(".")[0]
    return (float(time) if time.isdecimal() else path.stat().st_mtime), path.name


def _events(path: Path) -> Iterator[Any]:
    try:
        from tensorboardX.proto.event_pb2 import Event
    except ImportError as error:
        raise InputError(
            f"{path}: TensorBoard's files need tensorboardX: pip install tensorboardX ({error})"
        ) from error
    data, position = path.read_bytes(), 0
    while position + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, position)
        end = position + 12 + length
        if end + 4 > len(data):
            return  # the run was stopped while it wrote
        try:
            yield Event.FromString(data[position + 12 : end])
        except Exception as error:  # protobuf's DecodeError has moved between its versions
            raise InputError(f"{path}: not an event file of TensorBoard ({error})") from error
        position = end + 4
