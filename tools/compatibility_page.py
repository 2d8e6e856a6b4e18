"""`docs/compatibility.md`: what the W matrix recorded (`tests/matrix/outcomes.tsv`), as tables.

The record is written by `make matrix` from real runs; nothing here knows what it ought to say.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "matrix" / "outcomes.tsv"

Line = dict[str, str]
STATEMENTS = ("update", "merge", "delete")
UNTRIED = "nothing"
"""In the column `next`, where nothing of ours was tried afterwards."""
FOREIGN_FIRST, OURS_FIRST = "foreign first", "ours first"

INTRODUCTION = """\
# Beside other writers

{note}`make matrix` lets real foreign writers (`deltalake` 1.6 and Spark + Delta 4.4, in processes
of their own) act beside each of our operations ({ours}),
in both orders: {cells} cells. After each, the rows must be those of a serial order of what
succeeded, read by Tandem, `DeltaTable.scan()` and Spark + Delta, and our next compaction and
update must work. These tables are its record. In none of the cells did an operation of ours lose,
double or bring back a row.

## What becomes of ours

The foreign one commits between our read and our commit. *commits*: with the rows of both.
*commits, attempt 2*: what it had written was of no use any more, so it did its work again.
*superseded*: nothing was left to replace. A reason: refused by name, and nothing written.

"""

THEIRS = """
## What the other one loses by its own rules

It has read the table, then ours commits, then it goes on. These rules are its own: any other
writer beside it has the same effect. *tries again*: refused once; the next try, which reads what
is there, commits.

"""

AFTER = """
Where a Spark statement cannot be made to stand between its read and its commit (`INSERT`,
`OPTIMIZE`, `REORG`, `ALTER TABLE`, `VACUUM`), the matrix runs it after ours: {after}.

"""

DEFECT = """\
**`deltalake` 1.6 does not see that a compaction took its files**, whoever compacted: itself,
Spark, or Tandem. Its conflict check passes by removals that are marked as no change of data. What
began before a rewrite and commits after it then **doubles rows, or leaves rows that it meant to
delete**: {which}. So run these when no rewrite runs, or leave rewrites to one of the two
(`test_W3_deltalake_1_6_does_not_see_that_a_compaction_took_its_files` shows it without a commit
of ours). A **vacuum without retention** takes the files of versions that it has not seen.
"""

NEXT = """
## What is refused afterwards

Our next compaction and update work after every cell but these:

"""

OUTSIDE = """
## Outside our promise

| what | what comes of it |
|---|---|
| a foreign transaction that read our inputs before our commit | its own rules decide, as above, \
however long it ran. Let compactions keep away from long jobs: `minInterval`, `maintenanceWindow` |
| a vacuum without retention while an operation of ours runs | {vacuum}. It may also take files \
that a commit has just named, and those that other writers and readers need |
| a vacuum with retention, a checkpoint, a clean-up of the log | {harmless} |
| a log store that does not put if absent: Spark's default on S3, across drivers | it can \
overwrite anyone's commit. Give Spark a log store that does |
| a writer feature that we do not know | refused by name before anything is written: \
[features](features.md) |

## What to read with

| reader | deletion vectors |
|---|---|
| `tandem scan`, Spark + Delta, `DeltaTable.scan()` of `deltalake` | honoured |
| `DeltaTable.count()`, `to_pyarrow_table()` of `deltalake` | ignored, refused |
"""


def lines() -> list[Line]:
    with RECORD.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def compatibility(note: str) -> str:
    """The page."""
    record = sorted(lines(), key=lambda line: int(line["foreign"].partition("-")[0][1:]))
    text = INTRODUCTION.format(note=note, cells=len(record), ours=_listed(_of(record, "ours")))
    first = [line for line in record if line["order"] == FOREIGN_FIRST]
    text += _table("foreign action", first, lambda line: _end(line["our_end"]))
    text += THEIRS
    stale = [line for line in record if line["began"] == "before"]
    text += _table("foreign action, begun before ours", stale, _theirs)
    text += AFTER.format(after=_after(record))
    text += DEFECT.format(which=_listed(sorted({_action(line) for line in stale if _defect(line)})))
    text += NEXT
    text += _afterwards(record)
    return text + OUTSIDE.format(vacuum=_vacuum(first), harmless=_harmless(first))


def _of(record: Iterable[Line], field: str) -> list[str]:
    return list(dict.fromkeys(line[field] for line in record))


def _table(head: str, record: Sequence[Line], cell: Callable[[Line], str]) -> str:
    """A line an action; one column for what rewrites files, one for what changes rows."""
    text = f"| {head} | beside a compaction or segment rewrite | beside {_listed(STATEMENTS)} |\n"
    text += "|---|---|---|\n"
    for name in _of(record, "foreign"):
        cells = {line["ours"]: cell(line) for line in record if line["foreign"] == name}
        rewrites = {ours: found for ours, found in cells.items() if ours not in STATEMENTS}
        statements = {ours: found for ours, found in cells.items() if ours in STATEMENTS}
        text += f"| {_words(name)} | {_together(rewrites)} | {_together(statements)} |\n"
    return text


def _together(cells: Mapping[str, str]) -> str:
    """What most do; then those that do otherwise, by name."""
    if not cells:
        return "–"
    counted = Counter(cells.values())
    usual = counted.most_common(1)[0][0]
    others = {found: [o for o in cells if cells[o] == found] for found in counted}
    del others[usual]
    return "; ".join([usual, *(f"{_listed(who)}: {found}" for found, who in others.items())])


def _words(name: str) -> str:
    """`W2-deltalake-delete-all` → W2 `deltalake`: delete all."""
    row, _, rest = name.partition("-")
    for engine, title in (("deltalake", "`deltalake`"), ("spark", "Spark + Delta")):
        if rest.startswith(engine + "-"):
            return f"{row} {title}: {rest.removeprefix(engine + '-').replace('-', ' ')}"
    return f"{row} {rest.replace('-', ' ')}"


def _action(line: Line) -> str:
    return _words(line["foreign"]).partition(": ")[2]


def _end(end: str) -> str:
    """Of ours."""
    end = end.replace("succeeded", "commits")
    refused = end.removeprefix("refused: ")
    return f"`{refused}`" if refused != end else end


def _defect(line: Line) -> bool:
    return line["rows"] == "its own defect"


def _theirs(line: Line) -> str:
    if _defect(line):
        return "**wrong rows**"
    if line["rows"] == "removed live files":
        return "**takes live files**"
    tries = line["foreign_end"].split(", then ")
    if tries == ["committed"]:
        return "commits"
    if tries[-1] == "committed":
        return "tries again: " + ", ".join(f"`{t.removeprefix('refused: ')}`" for t in tries[:-1])
    return f"refused: `{tries[-1].removeprefix('refused: ')}`"


def _afterwards(record: Iterable[Line]) -> str:
    record = list(record)
    tried = [line for line in record if line["next"] not in ("ok", UNTRIED)]
    found = {line["foreign"]: line["next"] for line in tried}
    text = "| after | refused |\n|---|---|\n"
    for name, ends in found.items():
        named = [end.replace(" refused: ", ": `") + "`" for end in ends.split("; ")]
        text += f"| {_words(name)} | {', '.join(named)} |\n"
    for name in sorted({line["foreign"] for line in record if line["next"] == UNTRIED}):
        text += f"| {_words(name)}, begun before ours | not tried: it took live files |\n"
    return text


def _vacuum(first: Iterable[Line]) -> str:
    ends = {
        line["our_end"]
        for line in first
        if "vacuum-without-retention" in line["foreign"] and not line["our_end"].startswith("ref")
    }
    return f"ours {_listed(sorted(map(_end, ends)))}"


def _harmless(first: Iterable[Line]) -> str:
    names = [f"W5-deltalake-{what}" for what in ("vacuum-with-retention", "checkpoint")]
    names.append("W5-deltalake-log-cleanup")
    ends = {line["our_end"] for line in first if line["foreign"] in names}
    return f"ours {_listed(sorted(map(_end, ends)))}"


def _after(record: Iterable[Line]) -> str:
    late = [line for line in record if line["order"] == OURS_FIRST and line["began"] == "after"]
    return _listed(sorted({_theirs(line) for line in late}))


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words[:-1]) + " or " + words[-1] if len(words) > 1 else "".join(words)
