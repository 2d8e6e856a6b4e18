"""Which loads the outputs of a compaction were made from: their root tags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tandem.jobs.formats import RewriteJob
from tandem.jobs.results import OutputFile
from tandem.operations.kinds.table.time_column import time_column
from tandem.operations.model import Work
from tandem.planning.adjacency import Adjacency, beside
from tandem.timeline.names import SegmentNumbers
from tandem.timeline.root_tags import Root
from tandem.timeline.segment_files import SegmentFiles
from tandem.timeline.segments import segments

_NO_CELL = (-1, None)


def root_tags(
    work: Work,
    removed: Collection[str],
    cut: Collection[str],
    outputs: Sequence[OutputFile],
    files: Mapping[str, int],
    sources: Mapping[str, Sequence[str]],
    heirs: Mapping[str, str],
    new: Mapping[int, int],
    numbers: SegmentNumbers,
) -> dict[str, dict[str, str]]:
    """The root tags of each output, by path, if it is committed right after the latest version.

    Where the inputs in a time chunk and partition are adjacent loads, their range. Else a number of
    its own, as for a load: that of its segment if it is new, or the next one. So has an output with
    rows of an input that was cut: the others of its rows are still those of their load.

    Args:
        removed: the inputs that the commit removes.
        cut: the inputs that live on without the rows that were taken.
        files: for each output, how many files it becomes.
        sources: for each output, inputs and heirs that it has rows of.
        heirs: an input for each heir, which goes in its place.
        new: the numbers that this commit gave to runs for their names, by run.
    """
    cells = _cells(work, removed, heirs)
    home = {
        output.path: _NO_CELL
        if any(path in cut for path in sources[output.path])
        else next((cells[path] for path in sources[output.path] if path in cells), _NO_CELL)
        for output in outputs
    }
    sizes = Counter[tuple[int, int]]()
    for output in outputs:
        sizes[output.run, home[output.path][0]] += files[output.path]
    own = dict(new)
    found = {}
    for output in outputs:
        cell, root = home[output.path]
        if root is None:
            if output.run not in own:
                own[output.run] = numbers.take()
            root = Root(own[output.run], own[output.run])
        found[output.path] = root.tags(sizes[output.run, cell])
    return found


def _cells(
    work: Work, removed: Collection[str], heirs: Mapping[str, str]
) -> dict[str, tuple[int, Root | None]]:
    """For each removed input the number of its cell within its run, and the root of what is made
    of that."""
    _, job = work.frozen
    assert isinstance(job.job, RewriteJob)
    inputs = job.job.inputs
    runs = {inputs[at].logged_path: each.run for each in job.job.bins for at in each.inputs}
    runs |= {heir: runs[source] for heir, source in heirs.items()}
    time = time_column(work.table.spec, work.snapshot)
    live = segments(beside(work.snapshot.files, removed), time)
    files, adjacency = live.columns.files, Adjacency(live)
    of_files = np.array([runs[p] if p in removed else -1 for p in files.paths], np.int64)
    taken = SegmentFiles(files, np.flatnonzero(of_files >= 0))
    cells: dict[str, tuple[int, Root | None]] = {}
    number = 0
    for _, of_run in taken.grouped(of_files[taken.places]):
        for members, root in adjacency.roots(of_run):
            cells |= dict.fromkeys(members.paths, (number, root))
            number += 1
    return cells
