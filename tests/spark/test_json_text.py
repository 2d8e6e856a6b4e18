"""JSON lines: read as they stand, or refused with line, column and character."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.delta.schema import parse, to_arrow_type
from tandem.errors import InvalidSpec, StatementFailed
from tandem.spark.sources.json_text import (
    JsonOptions,
    JsonParser,
    JsonProblem,
    JsonRows,
    Number,
    compact,
)
from tandem.spark.sources.options import checked

USUAL = JsonOptions()
STRICT = JsonOptions(single_quotes=False, non_numeric=False)
LENIENT = JsonOptions(True, True, True, True, True, True, True)


def schema(**types: Any) -> str:
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in types.items()]
    return json.dumps({"type": "struct", "fields": fields})


INNER = json.loads(schema(x="string", Y="string"))
WANTED = schema(
    id="string",
    flag="string",
    name="string",
    s=INNER,
    a={"type": "array", "elementType": INNER, "containsNull": True},
    m={"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True},
)


def read(text: str, lenient: JsonOptions = USUAL) -> list[dict[str, Any]]:
    shape = to_arrow_type(parse(WANTED))
    arrays, lines = JsonRows(shape, lenient, "f.json").batch(text, 1)
    assert len(lines) == len(arrays[0])
    batch = pa.RecordBatch.from_arrays(arrays, names=[field.name for field in shape])
    return [{k: v for k, v in row.items() if v is not None} for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"id": 1}\n\n  \n{"ID": 2}\n', [{"id": "1"}, {"id": "2"}]),
        ('{"id": 12345678901234567890123, "name": 1.50}', None),
        ('{"name": {"x": 1.50, "y": [true, null, "q"]}}', None),
        ('[{"id": 1}, {"id": 2}]\n[]\n', [{"id": "1"}, {"id": "2"}]),
        ('{"id": {"x": 1}}', [{"id": '{"x":1}'}]),
        ('{"name": "1"}\n[{"name": [1, "1"]}]', [{"name": "1"}, {"name": '[1,"1"]'}]),
        ('{"flag": true, "name": false}', [{"flag": "true", "name": "false"}]),
        ('{"s": {"X": 1, "y": 2}}', [{"s": {"x": "1", "Y": "2"}}]),
        ('{"a": [{"y": 1}, null]}', [{"a": [{"x": None, "Y": "1"}, None]}]),
        ('{"m": {"k": 1, "K": null}}', [{"m": [("k", "1"), ("K", None)]}]),
        ("{'id': 1, 'name': 'it\\'s'}", [{"id": "1", "name": "it's"}]),
        ('{"name": "\\ud83d\\ude00\\u00e9"}', [{"name": "\U0001f600\u00e9"}]),
    ],
)
def test_values_are_the_texts_of_the_file(text: str, expected: list[dict[str, Any]] | None) -> None:
    if expected is None:
        name = "1.50" if "123" in text else '{"x":1.50,"y":[true,null,"q"]}'
        id_ = {"id": "12345678901234567890123"} if "123" in text else {}
        expected = [{**id_, "name": name}]
    assert read(text) == expected


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ('{"id": 1}{"id": 2}', "line 2", "more than one value"),
        ('{"id": 1} {"id": 2}', "line 2", "more than one value"),
        ('{"id": 1}, {"id": 2}', "line 2", "text follows"),
        ('{"id": 1} garbage', "line 2", "text follows"),
        ('{"id": 1, "id": 2}', "line 2, column id", "a field twice"),
        ('{"id": 1, "Id": 2}', "line 2, column id", "twice, in different case"),
        ('{"s": {"x": 1, "X": 2}}', "line 2, column s.x", "twice, in different case"),
        ('{"s": {"x": 1, "x": 2}}', "line 2, column s.x", "a field twice"),
        ('{"name": {"k": 1, "k": 2}}', "line 2, column name.k", "a field twice"),
        ('{"id": 1', "line 2, column id", "not JSON"),
        ('{"s": 5}', "line 2, column s", "another kind"),
        ('{"a": {"x": 1}}', "line 2, column a", "another kind"),
        ("5", "line 2", "not an object"),
        ("null", "line 2", "not an object"),
        ("[1]", "line 2", "not an object"),
        ("{", "line 2", "not JSON"),
        ('{"name": "\\ud800"}', "line 2, column name", "half a character"),
        ('{"name": "a\tb"}', "line 2, column name", "control character"),
        ('{"name": "\\q"}', "line 2, column name", "unknown escape"),
        ('{"id": 01}', "line 2, column id", "begins with zero"),
        ('{"name": ٣}', "line 2, column name", "not JSON"),
        ('{"name": 1٣}', "line 2, column name", "not JSON"),
        ('{"name": "a', "line 2, column name", "not terminated"),
        ('{"s": {"x": 1}, "a": [{"x": ?', "line 2, column a.x", "not JSON"),
        ("{id: 1}", "line 2", "not JSON"),
        ('{"id": 1} // why', "line 2", "text follows"),
        ("[" * 5000, "line 2", "nested too deeply"),
    ],
)
def test_ambiguous_json_is_refused_with_its_position(text: str, place: str, message: str) -> None:
    with pytest.raises(StatementFailed, match=message) as found:
        read('{"id": 0}\n' + text + "\n")
    assert found.value.resource == f"f.json, {place}"


@pytest.mark.parametrize("text", ['{"z": 1}', '{"s": {"z": 1}}', '{"a": [{"z": 1}]}'])
def test_fields_that_the_table_lacks_are_named(text: str) -> None:
    with pytest.raises(InvalidSpec, match=r"f\.json, line 1, column .*z.*lacks"):
        read(text)


def test_options_admit_other_forms_of_json() -> None:
    text = "/* a */ {id: 007, 'name': 'a\\q\tb'} // b"
    assert read(text, LENIENT) == [{"id": "7", "name": "aq\tb"}]
    assert JsonParser(USUAL).parse('{"d": NaN}') == {"d": "NaN"}
    for bad in ('{"d": NaN}', "{'d': 1}"):
        with pytest.raises(JsonProblem):
            JsonParser(STRICT).parse(bad)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{'a': 'x\"y\\\"z\\'\\\\'}", {"a": 'x"y"z\'\\'}),
        ('{"a": "x\\\'y"}', {"a": "x'y"}),
        (
            "[-INF, +INF, INF, -Infinity, NaN]",
            ["-Infinity", "Infinity", "Infinity", "-Infinity", "NaN"],
        ),
        ("{NaN: NaN, $x1: -007.50, é /* c */ : 0}", {"NaN": "NaN", "$x1": "-7.50", "é": "0"}),
        ('["/* no */", // yes', None),
        ("[a]", None),
        ("[a: 1]", None),
        ("[NaNx]", None),
        ("[1 /* open ]", None),
        ("{\"a\": \"b, 'c': 'd'}", None),
    ],
)
def test_what_options_admit_is_rewritten_or_refused(text: str, expected: Any) -> None:
    if expected is not None:
        assert JsonParser(LENIENT).parse(text) == expected
        return
    with pytest.raises(JsonProblem):
        JsonParser(LENIENT).parse(text)


def test_options_of_json_are_known_in_any_case() -> None:
    assert JsonOptions.of(checked("Json", {"allowcomments": "TRUE"})).comments


VALUES = st.recursive(
    st.none() | st.booleans() | st.text(max_size=4) | st.integers().map(float),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(VALUES)
def test_strict_json_and_its_rewritten_form_are_the_same_value(value: Any) -> None:
    text = json.dumps(value)
    # What is appended makes no value, so that the text is rewritten.
    commented = JsonParser(LENIENT, Number).parse(f"{text} // comment")
    assert JsonParser(STRICT).parse(text) == commented
    assert json.loads(compact(commented)) == value
