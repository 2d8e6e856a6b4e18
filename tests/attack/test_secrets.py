"""What is secret is neither printed nor stored, also where it was typed into a wrong place."""

from __future__ import annotations

import pytest

from support.documents import document
from tandem import spec
from tandem.errors import InvalidSpec
from tandem.spec.problems import shown

CANARY = "CANARY-4711"


@pytest.mark.parametrize(
    "body",
    [
        {"location": f"s3://user:{CANARY}@bucket/x"},
        {"location": f"s3://{CANARY}@bucket/x"},
        {"location": f"http://user:{CANARY}@host/x"},
        {"location": f"s3://bucket/x?X-Amz-Signature={CANARY}"},
        {"location": f"s3://bucket/x#token={CANARY}"},
        {"location": "s3://b/x", "storage": {"options": {"aws_secret_access_key": CANARY}}},
        {"location": "s3://b/x", "storage": {"options": {"endpoint": f"http://u:{CANARY}@h:9"}}},
    ],
    ids=["user info", "user", "other scheme", "signed", "fragment", "option", "endpoint"],
)
def test_credentials_in_a_resource_are_refused_and_not_repeated(body: dict[str, object]) -> None:
    with pytest.raises(InvalidSpec) as refused:
        spec.parse(document("LakeTable", "lake", body))
    error = refused.value
    text = f"{error} {error!r} {error.found} {error.message} {error.remedy}"
    assert CANARY not in text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("s3://bucket/a b", "'s3://bucket/a b'"),
        ("abfss://container@account/x", "'abfss://…@account/x'"),
        ("why? because a=b", "'why? because a=b'"),
        (5, "5"),
    ],
)
def test_settings_that_are_not_secret_are_shown(value: object, expected: str) -> None:
    assert shown(value) == expected
