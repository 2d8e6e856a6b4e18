"""Secrets are taken out of reports: by place, by looks, and wherever else they stand."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from typing import Any

import pytest

from cli.kubectl_objects import Json, body, state
from tandem.cli.kubectl.access import Access
from tandem.cli.kubectl.redact import REMOVED, Redactor, is_harmless
from tandem.cli.kubectl.report import Bundle, _logs
from tandem.kube.client.api import Forbidden, ResourcePath


@pytest.mark.parametrize("text", ["12", "1Gi", "2g", "true", "0.5", "90s", "1h30m", "2027-01-15"])
def test_numbers_sizes_and_times_are_no_secrets(text: str) -> None:
    assert is_harmless(text)


@pytest.mark.parametrize("text", ["hunter2", "1Gix", "", "AKIA", "12 34", "true!"])
def test_any_other_word_may_be_a_secret(text: str) -> None:
    assert not is_harmless(text)


@pytest.mark.parametrize("word", ["a", "secret", "-sig", "eyJ12345678.a", "://a", "secret: '"])
def test_a_long_word_is_redacted_quickly(word: str) -> None:
    """Deletion vectors, tokens and file lists in logs are such words. Quadratic work on a word of
    this length takes hours, which the suite's time limit ends."""
    Redactor().text(word * (1_000_000 // len(word)))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("s3://user:hunter2@host/x failed", "host/x failed"),
        ("password=hunter2; next", "; next"),
        ('{"aws_secret_access_key": "hunter2", "a": 1}', '"a": 1'),
        ("Authorization: Bearer hunter2hunter2", "Authorization"),
        ("key AKIAABCDEFGHIJKLMNOP is wrong", "is wrong"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.abc-def at line 3", "at line 3"),
        ("-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----\nend", "end"),
        ("https://x.blob/y?sv=1&sig=hunter2%3D&se=2", "https://x.blob/y?sv=1"),
    ],
)
def test_words_that_look_like_secrets_are_redacted_in_texts(text: str, kept: str) -> None:
    clean = Redactor().text(text)
    assert REMOVED in clean
    assert kept in clean
    for secret in ("hunter2", "AKIAABC", "eyJhbGci"):
        assert secret not in clean


def test_values_redacted_in_an_object_are_redacted_in_logs() -> None:
    redactor = Redactor(statements=True)
    found = body(
        "TableUpdate", "u", state("Failed", "JobFailed", "near k = 'x-17'"),
        update={"where": "k = 'x-17'", "set": {"v": "'xyz-18'"}},
        sparkTemplate={"spec": {"driver": {"env": [{"name": "A", "value": "open sesame"}]},
                                "sparkConf": {"spark.memory": "2g", "spark.x": "abracadabra"}}},
        metadata={"labels": {"tandem.dev/kind": "keep", "team": "red-team"}},
    )  # fmt: skip
    clean = redactor.clean(found)
    assert clean["spec"]["sparkTemplate"]["spec"]["sparkConf"] == {
        "spark.memory": "2g",
        "spark.x": REMOVED,
    }
    assert clean["metadata"]["labels"] == {"tandem.dev/kind": "keep", "team": REMOVED}
    assert clean["spec"]["update"] == {"where": REMOVED, "set": {"v": REMOVED}}
    assert clean["spec"]["tableRef"] == {"name": "t"}
    insert = {"where": "s.k = 'x-19'", "insert": {"values": {"v": "'xyz-20'"}}}
    merge = body("TableUpdate", "m", merge={"true": "t.k = 'x-21'", "whenNotMatched": [insert]})
    assert redactor.clean(merge)["spec"]["merge"] == {
        "true": REMOVED,
        "whenNotMatched": [{"where": REMOVED, "insert": {"values": {"v": REMOVED}}}],
    }
    finished = redactor.finish(clean)
    assert finished["status"]["conditions"][0]["message"] == f"near {REMOVED}"
    line = redactor.finish("A is open sesame, x abracadabra, set 'xyz-18'")
    assert line == f"A is {REMOVED}, x {REMOVED}, set {REMOVED}"
    schedule = {"cron": "0 3 * * *", "template": {"type": "Major", "layout": {"columns": ["a"]}}}
    policy = body("LakeTable", "t", compaction={"schedules": [schedule]})
    assert Redactor().clean(policy)["spec"]["compaction"]["schedules"] == [schedule]


class Logs:
    """An API server of which only a log and metrics can be had."""

    async def list(self, _where: ResourcePath, **_query: str) -> Json:
        raise Forbidden(403, "Forbidden", "cannot list")

    async def request(self, _method: str, url: str, *, query: Any = None, **_options: Any) -> Json:
        asked = f"{url} {query}" if query else url
        return {"text": f"{asked}\nAWS_SECRET_ACCESS_KEY=hunter2 and open sesame\n"}


def test_logs_in_a_report_are_redacted() -> None:
    bundle = Bundle(Redactor())
    variable = {"env": [{"name": "A", "value": "open sesame"}]}
    bundle.redactor.clean(body("TableUpdate", "u", sparkTemplate={"spec": {"driver": variable}}))
    container = {"name": "driver", "restartCount": 1}
    pod: Json = {"metadata": {"namespace": "n", "name": "p"},
                 "status": {"containerStatuses": [container]}}  # fmt: skip
    access = Access(Logs(), "n")  # type: ignore[arg-type]
    asyncio.run(_logs(access, bundle, [pod], "logs", 7))
    asyncio.run(bundle.reading("pods", access.list(ResourcePath("", "v1", "pods", "n"))))
    with tarfile.open(fileobj=io.BytesIO(bundle.pack({"by": "test"})), mode="r:gz") as archive:
        files = {
            entry.name: found.read().decode()
            for entry in archive.getmembers()
            if (found := archive.extractfile(entry))
        }
    log = files["tandem-report/logs/n/p/driver.log"]
    assert "'tailLines': '7'" in log
    assert f"KEY={REMOVED} and {REMOVED}" in log
    assert "'previous': 'true'" in files["tandem-report/logs/n/p/driver.previous.log"]
    manifest = json.loads(files["tandem-report/manifest.json"])
    assert manifest["missing"] == [
        {"what": "pods", "why": "you may not list pods in namespace n", "reason": "AccessDenied"}
    ]
    assert "hunter2" not in "".join(files.values())
