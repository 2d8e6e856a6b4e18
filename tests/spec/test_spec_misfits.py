"""Fields that do not go together say what was found, what would do, and how to come there."""

from __future__ import annotations

import pytest

from tandem.errors import InvalidSpec
from tandem.spec import load_text

HEAD = "apiVersion: tandem.dev/v1alpha1\n"
TABLE = f"{HEAD}kind: LakeTable\nmetadata: {{name: t}}\nspec: {{location: 'file:///t'}}\n---\n"
DELTA = "{format: Delta, location: 'file:///s'}"
TWO_COLUMNS = "[{name: a, type: long}, {name: b, type: long}]"


def _operation(kind: str, spec: str) -> str:
    return (
        f"{TABLE}{HEAD}kind: {kind}\nmetadata: {{name: x}}\nspec: {{tableRef: {{name: t}}, {spec}}}"
    )


def _table(create: str) -> str:
    spec = f"{{location: 'file:///t', create: {{{create}}}}}"
    return f"{HEAD}kind: LakeTable\nmetadata: {{name: t}}\nspec: {spec}\n"


def _update(spec: str) -> str:
    return _operation("TableUpdate", spec)


def _compaction(spec: str) -> str:
    return _operation("TableCompaction", spec)


def _replace(spec: str, what: str = "intervals: ['2013']") -> str:
    return _operation("TableReplace", f"replace: {{{what}}}, {spec}")


def _rewrite(spec: str) -> str:
    return _operation("SegmentRewrite", f"segments: ['0'], rewrite: {{{spec}}}")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (_update("priority: 1"), "none of them"),
        (_update("delete: {where: a}, update: {set: {a: '1'}}"), "update, delete"),
        (_operation("TableIngest", "source: {format: Parquet, location: 'file:///s', version: 3}"),
         "version 3 with format Parquet"),
        (_update(f"merge: {{source: {DELTA}, on: a}}"), "no clause"),
        (_update(f"merge: {{source: {DELTA}, on: a, 'true': b, whenMatched: [{{delete: {{}}}}]}}"),
         "on, and true, which is how YAML 1.1 reads a bare on"),
        (_update(f"merge: {{source: {DELTA}, on: a, whenMatched: [{{}}]}}"), "none of them"),
        (_update(f"merge: {{source: {DELTA}, on: a, whenNotMatched: [{{insertAll: {{}}, "
                 "insert: {values: {a: '1'}}}]}"), "insert, insertAll"),
        (_compaction("type: Major, layout: {strategy: Sort}"), "no columns"),
        (_compaction("type: Major, layout: {columns: [a]}"), "columns a with strategy BinPack"),
        (_compaction("type: Major, minor: {}"), "minor with type Major"),
        (_compaction("type: Minor, minor: {segments: ['1', '2'], adjacentOnly: true}"),
         "adjacentOnly with segments 1, 2"),
        (_compaction("type: Custom"), "no custom"),
        (_compaction("type: Custom, custom: {}"), "none of them"),
        (_compaction("type: Custom, custom: {segments: ['1'], where: a}"), "segments, where"),
        (_compaction("type: Custom, custom: {segments: ['1']}, skipOffsetFromLatest: 1h"),
         "both of them"),
        (_rewrite(""), "none of them"),
        (_rewrite("recompress: {codec: snappy, level: 3}"), "level 3 with codec snappy"),
        (_rewrite("recompress: {codec: gzip, level: 12}"), "level 12"),
        (_table(f"schema: {TWO_COLUMNS}, partitionBy: [c]"), "c"),
        (_table(f"schema: {TWO_COLUMNS}, partitionBy: [a, A]"), "a, A"),
        (_table(f"schema: {TWO_COLUMNS}, partitionBy: [a, b]"), "all 2 columns"),
        (_table("schema: [{name: a, type: long}, {name: A, type: long}]"),
         "a twice, ignoring case"),
        (_operation("TableReplace", "replace: {}"), "none of them"),
        (_replace("startVersion: 3, scope: AtCommit"), "startVersion with scope AtCommit"),
        (_replace("outside: Drop"), "outside without a source"),
    ],
)  # fmt: skip
def test_a_misfit_has_all_that_an_error_has(text: str, found: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        load_text(text, "a.yaml")
    problem = caught.value
    assert problem.found == found
    assert problem.expected
    assert problem.remedy
    assert "docs/resources.md" not in problem.remedy


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (_replace("startVersion: 3, scope: AtCommit"), "scope AtStart, or no startVersion"),
        (_replace("outside: Fail"), "a source, or no outside"),
        (_replace("granularity: Day"), "a source, or no granularity"),
        (_replace(f"granularity: All, source: {DELTA}"), "Hour, Day, Week, Month"),
        (_replace(f"outside: Drop, source: {DELTA}", "segments: ['7']"), "no outside"),
    ],
)
def test_what_a_replace_expects_fits_what_it_found(text: str, expected: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        load_text(text, "a.yaml")
    assert expected in caught.value.expected
