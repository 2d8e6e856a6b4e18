"""The record of the W matrix: written by `make matrix`, kept beside its tests, read by
`tools/compatibility_page.py`. Nothing in it depends on the day or the machine."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from support.matrix.cells import Outcome, cells

ROOT = Path(__file__).resolve().parents[3]
RECORDING = ROOT / "build" / "matrix"
"""Lines of JSON of the run that goes on, one file a worker."""

RECORD = ROOT / "tests" / "matrix" / "outcomes.tsv"
"""All cells of the last whole run."""


def collected(earlier: Iterable[Outcome] = ()) -> list[Outcome]:
    """Of all workers, each cell once, in the order of the table of cells. Cells that were not
    played have their outcome of an `earlier` run, if there was one.

    Raises: ValueError if cells are missing, and no earlier run is given: then it was not whole.
    """
    found = {_key(outcome): outcome for outcome in earlier}
    whole = not found
    for path in sorted(RECORDING.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            outcome = Outcome(**json.loads(line))
            found[_key(outcome)] = outcome
    wanted = [
        (
            *(cell.foreign, cell.ours, cell.order.value),
            *("on" if on else "off" for on in (cell.vectors, cell.tracking)),
        )
        for cell in cells()
    ]
    missing = [key for key in wanted if key not in found]
    if missing and whole:
        raise ValueError(f"{len(missing)} cells have no outcome, as {missing[0]}")
    return [found[key] for key in wanted if key in found]


def _key(outcome: Outcome) -> tuple[str, ...]:
    return outcome.foreign, outcome.ours, outcome.order, outcome.vectors, outcome.tracking


def write(outcomes: Sequence[Outcome], path: Path = RECORD) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(
            file, list(Outcome.__dataclass_fields__), delimiter="\t", lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(outcome.as_dict() for outcome in outcomes)


def read(path: Path = RECORD) -> list[Outcome]:
    with path.open(newline="") as file:
        lines: Iterable[Mapping[str, str]] = csv.DictReader(file, delimiter="\t")
        return [Outcome(**line) for line in lines]
