"""Bugs in replaces: which rows go, and what counts as their start."""

from __future__ import annotations

from mutants.model import Check, Mutant

_SEARCH = (Check.SEARCH, Check.RULES)
_REAL = (Check.REPLACES,)
_RULES = "reconcile/rules.py"
_AGES = "reconcile/replace.py"
_RULE = "reconcile/replace.py"
_SCOPE = "pruning/scope.py"
_KIND = "operations/kinds/replace.py"

REPLACES = (
    Mutant(
        "replace-unknown-stays",
        "AtStart, a row of unknown age; I-55",
        _RULES,
        "Age.UNKNOWN: ReplaceFate.CONFLICT",
        "Age.UNKNOWN: ReplaceFate.STAYS",
        _SEARCH,
    ),
    Mutant(
        "replace-unknown-removed",
        "AtStart, a row of unknown age; I-53",
        _RULES,
        "Age.UNKNOWN: ReplaceFate.CONFLICT",
        "Age.UNKNOWN: ReplaceFate.REMOVED",
        _SEARCH,
    ),
    Mutant(
        "replace-late-removed",
        "AtStart, a late row; I-53",
        _RULES,
        "Age.LATE: ReplaceFate.STAYS",
        "Age.LATE: ReplaceFate.REMOVED",
        _SEARCH,
    ),
    Mutant(
        "replace-other-segments-removed",
        "AtStart, a row of a segment that is not named",
        _RULES,
        "Age.OTHER: ReplaceFate.STAYS",
        "Age.OTHER: ReplaceFate.REMOVED",
        _SEARCH,
    ),
    Mutant(
        "replace-merge-is-late",
        "ages: a merge that changed rows",
        "reconcile/classify.py",
        'if operation == "MERGE" and not commit.removes:',
        'if operation == "MERGE":',
        (Check.RULES, Check.REPLACES),
    ),
    Mutant(
        "replace-mixed-is-old",
        "ages: a rewrite of old and late rows",
        _AGES,
        "return found.pop() if len(found) == 1 else Age.UNKNOWN",
        "return found.pop() if len(found) == 1 else Age.OLD",
        _SEARCH,
    ),
    Mutant(
        "replace-restored-is-old",
        "ages: a row that was dead at the cutoff",
        _AGES,
        "_add(found, Age.UNKNOWN, positions & state.dead)",
        "_add(found, Age.OLD, positions & state.dead)",
        _SEARCH,
    ),
    Mutant(
        "replace-map-ignored",
        "ages: a mapped rewrite is followed row by row",
        _AGES,
        "for path in fresh})",
        "for path in fresh}) if not maps else None",
        _SEARCH,
    ),
    Mutant(
        "replace-whole-file",
        "a file with rows that stay gets a deletion vector",
        _RULE,
        "FileDeletes(path, state.rows, state.dead | gone, len(gone))",
        "FileDeletes(path, state.rows, BitMap64(range(state.rows)), len(gone))",
        _SEARCH,
    ),
    Mutant(
        "replace-masks-not-combined",
        "masks combine; D53",
        _RULE,
        "FileDeletes(path, state.rows, state.dead | gone, len(gone))",
        "FileDeletes(path, state.rows, gone, len(gone))",
        _SEARCH,
    ),
    Mutant(
        "replace-vectors-where-there-are-none",
        "with vectors: Only, and none, only whole files go",
        _RULE,
        "if not found.is_whole and not in_part:",
        "if found.is_whole and not in_part:",
        (Check.RULES,),
    ),
    Mutant(
        "replace-null-times-removed",
        "a row without a time is in no interval but all",
        _SCOPE,
        "found[inside & timed] = Coverage.ALL",
        "found[inside] = Coverage.ALL",
        _REAL,
    ),
    Mutant(
        "replace-statistics-not-widened",
        "statistics cut times to milliseconds",
        _SCOPE,
        "end = np.asarray(pc.fill_null(high, 0)) // 1_000 + 1",
        "end = np.asarray(pc.fill_null(high, 0)) // 1_000",
        _REAL,
    ),
    Mutant(
        "replace-cutoff-moves",
        "one run, one cutoff; I-54",
        "operations/attempt/records.py",
        "    if any(_has_plan(store, operation_id, earlier) for earlier in range(1, attempt)):\n"
        "        fixed(store, operation_id)\n"
        "        return\n",
        "    store.delete([path])\n",
        _REAL,
        "Druid#15085: luck decides whether late rows survive",
    ),
    Mutant(
        "replace-start-version-ignored",
        "startVersion sets the cutoff",
        _KIND,
        "if spec.start_version is not None\n                else",
        "if spec.start_version is None\n                else",
        _REAL,
    ),
    Mutant(
        "replace-doubles-a-compacted-segment",
        "named segments that are gone; D47",
        _KIND,
        "require_live(wanted, live, ",
        "require_live((), live, ",
        _REAL,
    ),
    Mutant(
        "replace-any-column-of-a-partition",
        "all columns of a partition must agree",
        _SCOPE,
        "all_of_it &= columns[name]",
        "all_of_it |= columns[name]",
        _REAL,
    ),
    Mutant(
        "replace-hint-despite-late-rows",
        "the hint of masked intervals names no live row; D58",
        _RULE,
        "if chosen <= found.dead:",
        "if chosen:",
        _REAL,
    ),
    Mutant(
        "replace-hint-forgets-earlier-masks",
        "the hint of masked intervals; D58",
        "operations/kinds/row_scope.py",
        "format_masked(known | intervals, ",
        "format_masked(intervals, ",
        _REAL,
    ),
)
