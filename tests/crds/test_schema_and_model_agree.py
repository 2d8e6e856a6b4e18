"""On odd texts the API server and `tandem run` agree: both take it, or both refuse it.

The rules in CEL and the validators are written in two languages; these texts are made to fall
between them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from crds.dry_run import Sender
from crds.wrong_resources import manifest
from tandem.errors import InvalidSpec
from tandem.spec import parse

COUNT = 100

SIZES = [
    *["1", "0", "9", "5", "12", ".", "+", "-", " ", "99999999", "0x1", "٣"],
    *[
        "Ki",
        "Mi",
        "Gi",
        "Ei",
        "k",
        "K",
        "m",
        "G",
        "T",
        "P",
        "E",
        "n",
        "u",
        "e3",
        "E3",
        "e-3",
        "e99",
    ],
]
DURATIONS = [
    *["0", "1", "5", ".", "-", "+", " ", "999999999", "0.000000001s", "876000h", "٣"],
    *["h", "m", "s", "ms", "us", "ns", "µs", "μs", "d", "1h", "30m"],
]
NAMES = ["a", "z", "0", "9", "-", ".", "A", "_", "a" * 62, "a" * 63, "é", " ", "\n"]
SCHEMES = [
    *["s3://", "file://", "file:///", "gs://", "abfss://", "s3a://", "S3://", "https://"],
    *["", "/", "~", "${X}", "s3:/", "s3:"],
]
PLACES = [
    *["a", "b", "a.b", "localhost", "_", "-", "é", "/", "//", "/../", "/..", ".", ":", "@"],
    *["#", "?", "$", "${", "\\", "[", "]", " ", "\n", "\t", "\x7f"],
    *["%2e", "%2E", "%2f", "%2F", "%0a", "%00", "%20", "%", "%zz"],
]
TIMES = ["0", "1", "2", "3", "5", "9", ":", "01", "23", "00", "٣", "\n"]
OPTIONS = [
    *["aws", "_", "-", "region", "secret", "key", "access", "account", "sas", "SAS", "s"],
    *["token", "Password", "credential"],
]


def texts(parts: list[str], longest: int) -> Callable[[random.Random], str]:
    return lambda rnd: "".join(rnd.choice(parts) for _ in range(rnd.randint(0, longest)))


def table(**spec: Any) -> dict[str, Any]:
    return manifest("LakeTable", spec)


def window(start: str, duration: str) -> dict[str, Any]:
    return table(compaction={"maintenanceWindow": {"start": start, "duration": duration}})


KINDS_OF_TEXT: dict[str, tuple[Callable[[random.Random], str], Callable[[str], dict[str, Any]]]] = {
    "size": (texts(SIZES, 4), lambda text: manifest("TableCompaction", {"targetFileSize": text})),
    "duration": (texts(DURATIONS, 4), lambda text: table(retention={"files": text})),
    "bounded duration": (texts(DURATIONS, 4), lambda text: window("01:00", text)),
    "time of day": (texts(TIMES, 3), lambda text: window(text, "1h")),
    "name": (
        texts(NAMES, 5),
        lambda text: manifest("TableCompaction", {"tableRef": {"name": text}}),
    ),
    "location": (
        lambda rnd: rnd.choice(SCHEMES) + texts(PLACES, 5)(rnd),
        lambda text: table(location=text),
    ),
    "option": (texts(OPTIONS, 4), lambda text: table(storage={"options": {text: "x"}})),
}


@pytest.mark.parametrize("kind", KINDS_OF_TEXT)
def test_schema_and_model_agree(sender: Sender, kind: str) -> None:
    make, resource = KINDS_OF_TEXT[kind]
    rnd = random.Random(kind)
    odd = sorted({make(rnd) for _ in range(4 * COUNT)})
    answers = sender.dry_run([resource(text) for text in odd])
    ours = [refusal(resource(text)) for text in odd]
    differ = [
        (text, answer, our)
        for text, answer, our in zip(odd, answers, ours, strict=True)
        if bool(answer) != bool(our)
    ]
    assert differ == []
    # Not because all are refused.
    assert "" in answers


def refusal(resource: dict[str, Any]) -> str:
    try:
        parse(resource)
    except InvalidSpec as error:
        return str(error)
    return ""


@pytest.mark.parametrize("size", [0, 1, -1, 2**62, 2**63 - 2, 2**63 - 1])
def test_schema_and_model_agree_on_numbers_of_bytes(sender: Sender, size: int) -> None:
    resource = manifest("TableCompaction", {"targetFileSize": size})
    [answer] = sender.dry_run([resource])
    assert bool(answer) == bool(refusal(resource))


def test_null_counts_as_absent_in_schema_and_model(sender: Sender) -> None:
    """As a template leaves it behind whose value is missing."""
    null = {"suspend": None, "layout": None, "targetFileSize": None, "sparkTemplate": None}
    resource = manifest("TableCompaction", {})
    resource["spec"] |= null
    assert sender.dry_run([resource]) == [""]
    assert parse(resource).spec == parse(manifest("TableCompaction", {})).spec
    resource["spec"]["type"] = None
    assert "spec.type: Required value" in sender.dry_run([resource])[0]
    assert "spec.type: required" in refusal(resource)


def long_names(count: int) -> list[str]:
    return [f"Column {number:05} {'x' * 243}" for number in range(count)]


LARGEST = {
    "names of segments": manifest(
        "TableCompaction",
        {
            "type": "Custom",
            "custom": {"segments": [f"{number:064}" for number in range(10_000)]},
        },
    ),
    "columns to set": manifest(
        "TableUpdate",
        {"delete": None, "update": {"set": dict.fromkeys(long_names(256), "a" * 1_000)}},
    ),
    "columns to create": table(
        create={
            "schema": [{"name": name, "type": "long"} for name in long_names(1_500)],
            "partitionBy": [name.upper() for name in long_names(1_500)[-8:]],
        }
    ),
    "clauses of a merge": manifest(
        "TableUpdate",
        {
            "delete": None,
            "merge": {
                "source": {"format": "Delta", "location": "s3://lake/staging"},
                "on": "t.id = s.id",
                "whenMatched": [{"update": {"set": dict.fromkeys(long_names(256), "s.a")}}] * 10,
            },
        },
    ),
}


@pytest.mark.parametrize("what", LARGEST)
def test_the_most_that_the_bounds_allow_is_admitted(sender: Sender, what: str) -> None:
    """The API server bounds what rules cost twice: by the schema, and again when they run."""
    assert refusal(LARGEST[what]) == ""
    assert sender.dry_run([LARGEST[what]]) == [""]
