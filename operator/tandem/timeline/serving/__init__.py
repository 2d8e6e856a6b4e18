"""Which of its parts a loader of single segments shows.

A log hides and shows files atomically, and decides alone what a table shows. A loader gets there
step by step: a cache, an index server, or a copy of a table holds some parts of a new generation
while others are still on their way. This library tells at each step which of its parts to show, so
that no row is shown twice, and for which ranges to ask the table. It never decides what a table
shows.

The encoding is that of Druid's segment locking. Loads have numbers; a part of a compaction carries
the range of the loads that it was made from, its *root range*, and a *minor* version above those
of its inputs. The parts that one operation wrote for a range are a *group*: they appear together,
once all of them are there. A group overshadows the groups within its range that are older.

    parts      parts, their states, and how these change
    chunk      the groups of one chunk
    timeline   all chunks, and who holds each part
    stand_ins  which rows of which parts show a version of a table
"""

from tandem.timeline.serving.parts import Part, Partial, PartState, RootRange, StateChange
from tandem.timeline.serving.stand_ins import LivePart, RewrittenParts, Shown, StandIns
from tandem.timeline.serving.timeline import ServingTimeline

__all__ = [
    "LivePart",
    "Part",
    "PartState",
    "Partial",
    "RewrittenParts",
    "RootRange",
    "ServingTimeline",
    "Shown",
    "StandIns",
    "StateChange",
]
