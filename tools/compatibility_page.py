"""`docs/compatibility.md`: what the W matrix recorded (`tests/matrix/outcomes.tsv`), as tables.

`make matrix` writes the record from real runs. This module has no expected results.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from readers import AS_OF, readers_table

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "matrix" / "outcomes.tsv"

Line = dict[str, str]
STATEMENTS = ("update", "merge", "delete", "log merge")
REPLACES = ("replace AtStart", "replace AtCommit", "replace partitions", "drop")
UNTRIED = "nothing"
"""Value of the column `next` if no operation of ours was tried afterwards."""
FOREIGN_FIRST, OURS_FIRST = "foreign first", "ours first"

INTRODUCTION = """\
# Alongside other writers

{note}`make matrix` runs real foreign writers (`deltalake` 1.6 and Spark + Delta 4.4, in separate
processes) alongside each operation of Tandem ({ours}),
in both orders: {cells} cells. After each cell, the rows must be those of a serial order of the
commits that succeeded, read by Tandem, `DeltaTable.scan()` and Spark + Delta. Tandem's next
compaction and update must work. These tables are the record. In no cell did an operation of Tandem
lose, duplicate or resurrect a row.{half}

## Effect on Tandem's operations

The foreign writer commits between Tandem's read and Tandem's commit. *commits*: with the rows of
both. *commits, attempt 2*: the first attempt's files were obsolete, so the job ran again.
*superseded*: no input was left to replace. A reason: refused by name, without a write.

Replaces take intervals whose borders lie within files; *replace partitions* takes partitions,
`AtCommit`. A drop is `AtStart`. Appends bring rows into what is replaced: `AtStart` keeps them,
`AtCommit` replaces them. `Conflict`: the foreign commit leaves it unknown
[which rows came late](replacing-data.md#atstart).

"""

THEIRS = """
## Effect on the foreign writer, by its own rules

The foreign writer reads the table, then Tandem commits, then the foreign writer continues. The
rules are its own: any other concurrent writer has the same effect. *tries again*: refused once; the
next try reads the latest version and commits.

"""

AFTER = """
The matrix does not pause some Spark statements between read and commit (`INSERT`, `OPTIMIZE`,
`REORG`, `ALTER TABLE`, `VACUUM`). It runs them after Tandem's commit: {after}.

"""

DEFECT = """\
**`deltalake` 1.6 does not detect that a compaction removed its input files**, whether by itself,
Spark, or Tandem. Its conflict check ignores removals that are marked as no change of data. If it
starts before a rewrite and commits after it, it **duplicates rows, or keeps rows that it should
delete**: {which}. So run these only when no rewrite runs, or let only one of the two engines
rewrite (`test_W3_deltalake_1_6_does_not_see_that_a_compaction_took_its_files` shows it without a
commit of Tandem). A **vacuum without retention** removes the files of versions that it has not
read.

### Without deletion vectors

Deletion vectors make no difference to the foreign writer. The tables above are of tables that have
them; this one is of tables without (`test_N18_…`), and of statements that replace whole files.

| foreign action, started before ours | with a compaction | with a statement |
|---|---|---|
| `deltalake`: append | commits | tries again: `CommitFailedError` |
| `deltalake`: delete, update, merge or replace where | tries again: `CommitFailedError` \
| tries again: `CommitFailedError` |
| `deltalake`: delete all, overwrite, compact or z order | **wrong rows** \
| tries again: `CommitFailedError` |
| Spark + Delta: insert | commits | commits |
| Spark + Delta: delete, update, merge, overwrite or replace where \
| tries again: `DELTA_CONCURRENT_APPEND` | tries again: `DELTA_CONCURRENT_APPEND` |
"""

NEXT = """
## Operations refused afterwards

Tandem's next compaction and update work after every cell, except these:

"""

HALF = """ The tables have deletion vectors; {cells} more cells
have [tables without](#without-deletion-vectors)."""

VECTORS_OFF = """
## Without deletion vectors

The other {cells} cells begin with a table as its engine makes it by default: protocol (1, 2) where
no feature needs more, and `delta.enableDeletionVectors` not set. In none of them did Tandem change
the protocol, or add a deletion vector while the property was off. The outcomes are those above,
but for these actions{last}

"""

TRACKED = """
## With row tracking

{cells} cells begin with a table on which Spark + Delta has enabled row tracking. `deltalake` 1.6
refuses to commit to such tables, so Spark does what `deltalake` does elsewhere; `deltalake` reads,
checkpoints and vacuums them. Before and after each commit, the id and the commit version of each
row are read from the files, as the protocol defines them: rows that are as they were keep both,
also where the other writer moves them; changed rows keep their id, and have the version of the
commit; new rows have ids above the high-water mark that was. Ids are unique, and the mark never
falls. Once both have committed, `_metadata.row_id` and `_metadata.row_commit_version` by Spark must
be these. A dash: not played. Operations that tables with row tracking [refuse](features.md) have
no cells: {without}.

"""

OUTSIDE = """
## Outside of Tandem's guarantees

| situation | effect |
|---|---|
| a foreign transaction that read Tandem's inputs before Tandem's commit | its own rules decide, \
as above, however long it ran. Keep compactions away from long jobs: `minInterval`, \
`maintenanceWindow` |
| a vacuum without retention while an operation of Tandem runs | {vacuum}. It may also remove \
files that a commit has just named, and files that other writers and readers need |
| a vacuum with retention, a checkpoint, a clean-up of the log | {harmless} |
| a log store without put-if-absent: Spark's default on S3, across drivers | it can overwrite any \
commit. Configure a log store with put-if-absent for Spark |
| an unknown writer feature | refused by name before any write: [features](features.md) |

## Unity Catalog

Tables that [Unity Catalog manages](catalogs.md) are tested on `olai-uc-server` 0.0.11, another
server of the same API, with Spark 4.2 + Delta 4.4 and DuckDB 1.5 as other clients of the same
table. What it does not have was tried on a stand-in, a proxy before it, or not at all:

| what | how it was tried |
|---|---|
| the server of Unity Catalog's makers (Java, 0.6.0) | by hand, once, before Tandem had a client: \
one winner a version, a full backlog at the 11th commit, an accepted commit that is sent again is \
accepted again (`olai-uc-server`: refused), commits listed from the newest on (from the oldest) |
| commits listed from the newest on | sorted by the proxy: DuckDB 1.5 reads a table with more \
than one unpublished commit in no other order |
| the list of permitted maintenance (`allowed-maintenance-operations`, unitycatalog#1812) | added \
by the proxy, as the pull request describes it. A server without it permits no maintenance |
| credentials for S3 | the proxy vends those of a real S3 server; not session tokens of AWS STS |
| credentials that are renewed for a running job | the Secret on a real API server, and its \
file in a process with a real S3 server; not by a kubelet |
| credentials for Azure and GCS | their names only |
| a token that the catalog checks | the proxy's answers 401 and 403; the server takes any |
| Databricks | not at all |

## Readers

Deletion vectors need reader version 3: a reader that does not know them refuses a table that has
the feature, whether or not a file has a vector. Without vectors, a delete, an update or a merge
writes each file that it changes again; with them, it writes a bitmap for each, and one file of the
rows that are new. `tandem scan` reads them. As of {as_of}:

"""


def lines() -> list[Line]:
    with RECORD.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def compatibility(note: str) -> str:
    """The page."""
    found = sorted(lines(), key=lambda line: int(line["foreign"].partition("-")[0][1:]))
    both = [line for line in found if line["tracking"] == "off"]
    tracked = [line for line in found if line["tracking"] == "on"]
    record = [line for line in both if line["vectors"] == "on"]
    without = [line for line in both if line["vectors"] == "off"]
    half = HALF.format(cells=len(without)) if without else ""
    ours = _listed(_of(record, "ours"))
    text = INTRODUCTION.format(note=note, cells=len(record), ours=ours, half=half)
    first = [line for line in record if line["order"] == FOREIGN_FIRST]
    text += _table("foreign action", first, _our_end)
    text += THEIRS
    stale = [line for line in record if line["began"] == "before"]
    text += _table("foreign action, started before ours", stale, _theirs)
    text += AFTER.format(after=_after(record))
    text += DEFECT.format(which=_listed(sorted({_action(line) for line in both if _defect(line)})))
    text += NEXT
    text += _afterwards(record)
    if without:
        text += _vectors_off(record, without)
    if tracked:
        text += _tracked(tracked, _of(record, "ours"))
    text += OUTSIDE.format(vacuum=_vacuum(first), harmless=_harmless(first), as_of=AS_OF)
    return text + readers_table()


def _vectors_off(record: Sequence[Line], without: Sequence[Line]) -> str:
    """What tables without deletion vectors make different: all outcomes of the actions that have
    another one in some cell."""
    others = {_key(line): line for line in record}
    first = [line for line in without if line["order"] == FOREIGN_FIRST]
    stale = [line for line in without if line["began"] == "before"]
    text = ""
    for head, chosen, cell in (
        ("foreign action", first, _our_end),
        ("foreign action, started before ours", stale, _theirs),
    ):
        differ = {
            line["foreign"]
            for line in chosen
            if _key(line) not in others or cell(line) != cell(others[_key(line)])
        }
        if differ:
            text += "\n" if text else ""
            text += _table(head, [line for line in chosen if line["foreign"] in differ], cell)
    last = ":" if text else ". There is none."
    return VECTORS_OFF.format(cells=len(without), last=last) + text


def _tracked(record: Sequence[Line], all_ours: Sequence[str]) -> str:
    """All outcomes on tables with deletion vectors, and without them those that differ."""
    played = {vectors: {line["ours"] for line in record if line["vectors"] == vectors}
              for vectors in ("on", "off")}  # fmt: skip
    lacking = [name for name in all_ours if name not in played["on"]]
    only = [name for name in all_ours if name in played["on"] - played["off"]]
    parts = [", ".join(lacking)] if lacking else []
    parts += [f"without deletion vectors also {_listed(only)}"] if only else []
    text = TRACKED.format(cells=len(record), without="; ".join(parts) or "there is none")
    first = [line for line in record if line["order"] == FOREIGN_FIRST]
    with_, without = ([line for line in first if line["vectors"] == on] for on in ("on", "off"))
    text += _table("foreign action", with_, _our_end)
    others = {_key(line): line for line in with_}
    differ = {
        line["foreign"]
        for line in without
        if _our_end(line) != _our_end(others.get(_key(line), line))
    }
    if differ:
        text += "\nWithout deletion vectors:\n\n"
        chosen = [line for line in without if line["foreign"] in differ]
        text += _table("foreign action", chosen, _our_end)
    return text


def _key(line: Line) -> tuple[str, ...]:
    return line["ours"], line["foreign"], line["order"]


def _of(record: Iterable[Line], field: str) -> list[str]:
    return list(dict.fromkeys(line[field] for line in record))


def _table(head: str, record: Sequence[Line], cell: Callable[[Line], str]) -> str:
    """A line per action; one column for operations that rewrite files, one for statements, one for
    replaces."""
    rewrites = [ours for ours in _of(record, "ours") if ours not in (*STATEMENTS, *REPLACES)]
    text = f"| {head} | with a compaction or segment rewrite | with {_listed(STATEMENTS)} "
    text += "| with a replace or drop |\n|---|---|---|---|\n"
    for name in _of(record, "foreign"):
        cells = {line["ours"]: cell(line) for line in record if line["foreign"] == name}
        groups = [
            _together({ours: cells[ours] for ours in group if ours in cells})
            for group in (rewrites, STATEMENTS, REPLACES)
        ]
        text += f"| {_words(name)} | {' | '.join(groups)} |\n"
    return text


def _together(cells: Mapping[str, str]) -> str:
    """The most common outcome, *commits* if several are; then the operations with other
    outcomes, by name."""
    if not cells:
        return "–"
    counted = Counter(cells.values())
    usual = max(counted, key=lambda found: (counted[found], found == "commits"))
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


def _our_end(line: Line) -> str:
    return _end(line["our_end"])


def _defect(line: Line) -> bool:
    return line["rows"] == "its own defect"


def _theirs(line: Line) -> str:
    if _defect(line):
        return "**wrong rows**"
    if line["rows"] == "removed live files":
        return "**removes live files**"
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
        after = {line["ours"] for line in record if line["foreign"] == name}
        refused = [line["ours"] for line in tried if line["foreign"] == name]
        which = "" if after == set(refused) else f", and {_listed(list(dict.fromkeys(refused)))}"
        named = [end.replace(" refused: ", ": `") + "`" for end in ends.split("; ")]
        text += f"| {_words(name)}{which} | {', '.join(named)} |\n"
    for name in sorted({line["foreign"] for line in record if line["next"] == UNTRIED}):
        text += f"| {_words(name)}, started before ours | not tried: it removed live files |\n"
    return text


def _vacuum(first: Iterable[Line]) -> str:
    ends = {
        line["our_end"]
        for line in first
        if "vacuum-without-retention" in line["foreign"] and not line["our_end"].startswith("ref")
    }
    return f"Tandem {_listed(sorted(map(_end, ends)))}"


def _harmless(first: Iterable[Line]) -> str:
    names = [f"W5-deltalake-{what}" for what in ("vacuum-with-retention", "checkpoint")]
    names.append("W5-deltalake-log-cleanup")
    # One that once does not commit is named.
    found = sorted(
        ((line["ours"], _end(line["our_end"])) for line in first if line["foreign"] in names),
        key=lambda each: each[1] != "commits",
    )
    return f"Tandem {_together(dict(found))}"


def _after(record: Iterable[Line]) -> str:
    late = [line for line in record if line["order"] == OURS_FIRST and line["began"] == "after"]
    return _listed(sorted({_theirs(line) for line in late}))


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words[:-1]) + " or " + words[-1] if len(words) > 1 else "".join(words)
