"""Bugs in what loaders show, and in the tags that tell which loads a segment holds."""

from __future__ import annotations

from mutants.model import Check, Mutant

_SERVING = (Check.SERVING,)
_EXAMPLE = "examples/serving.py"
_ADJACENCY = "planning/adjacency.py"

SERVING = (
    Mutant(
        "serving-partial-group-shown",
        "a group appears once all of its parts are there; S9, I-34",
        _EXAMPLE,
        "return len(self.parts) == self.size",
        "return len(self.parts) > 0",
        _SERVING,
    ),
    Mutant(
        "serving-stand-in-without-later-deletes",
        "a stand-in shows the live rows of the part; I-58",
        _EXAMPLE,
        "self.row_maps[name].backward(name, positions)",
        "self.row_maps[name].backward(name, BitMap64(range(positions.max() + 1)))",
        _SERVING,
        "Druid: a fallback shows rows that were deleted since",
    ),
    Mutant(
        "serving-changed-group-stands-in-whole",
        "without a row map a changed group has no stand-in; I-58",
        _EXAMPLE,
        "return None  # rows were deleted since, or it is needed in part only",
        "continue",
        _SERVING,
    ),
    Mutant(
        "adjacency-unchecked",
        "no other live segment between the inputs; S15, S16, S17",
        _ADJACENCY,
        "return root if between == len(places) else None",
        "return root",
        _SERVING,
    ),
    Mutant(
        "adjacency-foreign-file-ignored",
        "a foreign file breaks adjacency",
        _ADJACENCY,
        "if ranges.unknown_within(low, high):",
        "if False:",
        _SERVING,
    ),
    Mutant(
        "hint-tag-trusted",
        "a hint of more rows than the vector hides is outdated; I-56",
        "timeline/masks.py",
        "if match is None or int(match[1]) > cardinality:",
        "if match is None:",
        _SERVING,
    ),
    Mutant(
        "root-tag-trusted",
        "a root tag beyond the limits counts as absent; I-56, S23",
        "timeline/lineage.py",
        "valid &= (minor >= 0) & (minor <= MAX_MINOR)",
        "valid &= minor >= 0",
        _SERVING,
    ),
)
