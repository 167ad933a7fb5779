"""What ``--log-dynamics`` writes beside the checkpoints: norms at every step, now and then.

A line of ``dynamics.jsonl`` is a JSON object: ``updates``, and ``units`` with name of a unit ->
name of a quantity -> a number for each step (null where all of the batch was padding). A resumed
run appends: of two lines for one update the later one counts.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Dict, List, Mapping, Sequence, Union

from fairseq_rum.errors import InputError

DYNAMICS_FILE = "dynamics.jsonl"

Steps = Dict[str, Dict[str, List[float]]]


def dynamics_line(updates: int, units: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """One line of the file, without its end."""
    rounded = {
        unit: {name: [_rounded(value) for value in values] for name, values in seen.items()}
        for unit, seen in units.items()
    }
    return json.dumps({"updates": updates, "units": rounded})


def read_dynamics(path: Union[str, Path]) -> Dict[int, Steps]:
    """Number of updates -> unit -> quantity -> a number for each step, nan for null.

    Raises:
        InputError: the file is missing, has another form, or nothing in it.
    """
    records: Dict[int, Steps] = {}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            updates = int(record["updates"])
            steps = {
                unit: {
                    name: [math.nan if value is None else float(value) for value in values]
                    for name, values in seen.items()
                }
                for unit, seen in record["units"].items()
            }
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if number == len(lines):
                break  # the run was stopped while it wrote
            raise InputError(f"{path}: line {number} is none of --log-dynamics") from error
        # Updates after this one were lost when the run was resumed.
        records = {earlier: value for earlier, value in records.items() if earlier < updates}
        records[updates] = steps
    if not records:
        raise InputError(f"{path}: nothing was logged yet")
    return records


def _rounded(value: float) -> Union[float, None]:
    return None if math.isnan(value) else float(f"{value:.5g}")
