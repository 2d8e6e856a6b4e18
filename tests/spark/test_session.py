"""How Spark is found and started: a missing Java is one sentence, settings are pinned."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tandem.errors import InvalidSpec, SparkMissing
from tandem.spark.runtime import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fake_java(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return java


def test_no_java_is_one_sentence_with_one_command(tmp_path: Path) -> None:
    with pytest.raises(SparkMissing) as caught:
        session.build_conf(environ={"PATH": str(tmp_path)})
    text = str(caught.value)
    assert "no Java was found" in text
    assert text.endswith("Run tools/setup-java.sh")
    assert "\n" not in text


def test_an_old_java_is_named_with_its_version(tmp_path: Path) -> None:
    fake_java(tmp_path, "11.0.2")
    with pytest.raises(SparkMissing, match=r"Java 11\.0\.2 is too old"):
        session.find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})


def test_java_home_wins_over_path(tmp_path: Path) -> None:
    chosen = fake_java(tmp_path / "home", "21.0.1")
    fake_java(tmp_path / "other", "17.0.1")
    env = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "other" / "bin")}
    assert session.find_java(env) == chosen


def test_archive_belongs_to_one_java_and_class_path(tmp_path: Path) -> None:
    first, second = fake_java(tmp_path / "a", "17.0.1"), fake_java(tmp_path / "b", "17.0.2")
    paths = {
        session.archive_path(first, (), tmp_path),
        session.archive_path(second, (), tmp_path),
        session.archive_path(first, (tmp_path / "x.jar",), tmp_path),
    }
    assert len(paths) == 3


def test_long_jobs_keep_the_optimizing_compiler() -> None:
    short, long = (
        session.build_conf(short=s)["spark.driver.extraJavaOptions"] for s in (True, False)
    )
    assert "TieredStopAtLevel" in short
    assert "TieredStopAtLevel" not in long


def test_a_changed_warm_up_changes_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = fake_java(tmp_path / "a", "17.0.1")
    package = tmp_path / "operator" / "tandem"
    warm_up = package / "spark" / "jobs" / "warm.py"
    warm_up.parent.mkdir(parents=True)
    monkeypatch.setattr(session, "PACKAGE", package)

    def path() -> Path:
        session._warm_up.cache_clear()
        return session.archive_path(java, (), tmp_path)

    try:
        warm_up.write_text("one")
        installed = path()
        (tmp_path / "tools").mkdir()
        (tmp_path / "tools" / "spark_warmup.py").write_text("two")
        checkout = path()
        warm_up.write_text("other")
        changed = path()
    finally:
        session._warm_up.cache_clear()
    assert len({installed, checkout, changed}) == 3
    same = {p.stem.rpartition("-")[0] for p in (installed, checkout, changed)}
    assert len(same) == 1, "so that set-up finds and removes those of earlier warm-ups"


@pytest.mark.parametrize("key", sorted(session.session_conf()))
def test_a_session_with_another_setting_is_refused_by_its_name(
    spark: SparkSession, key: str
) -> None:
    other = spark.newSession()
    for name, value in session.session_conf().items():
        other.conf.set(name, value)
    session.require_pinned(other)
    other.conf.set(key, OTHER.get(key) or str(session.session_conf()[key] != "true").lower())
    with pytest.raises(InvalidSpec) as refused:
        session.require_pinned(other)
    assert refused.value.field.endswith(key)
    assert refused.value.expected == session.session_conf()[key]


OTHER = {
    "spark.sql.storeAssignmentPolicy": "LEGACY",
    "spark.sql.session.timeZone": "Europe/Berlin",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
}


def test_pins_have_no_other_names(spark: SparkSession) -> None:
    """By an older name a setting could be set beside ours."""
    jvm: Any = spark.sparkContext._jvm
    known = getattr(jvm, "org.apache.spark.sql.internal.SQLConf$")
    entries = getattr(known, "MODULE$")
    for key in session.session_conf():
        assert entries.getConfigEntry(key).alternatives().isEmpty(), key


def test_a_requested_setting_does_not_replace_a_pin(spark: SparkSession) -> None:
    before = {key: str(spark.conf.get(key)) for key in session.session_conf()}
    try:
        made = session.session("pins", {"spark.sql.ansi.enabled": "false"})
        assert made.conf.get("spark.sql.ansi.enabled") == "true"
    finally:
        # `made` is the session of all tests, which read delta.`/path` with it.
        for key, value in before.items():
            spark.conf.set(key, value)


def test_a_cancelled_job_begins_nothing_more(spark: SparkSession) -> None:
    """It may be between two jobs of Spark at that moment, and go on for long otherwise."""
    from pyspark import InheritableThread

    context = spark.sparkContext
    between, cancelled, ended = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        context.setJobGroup("job", "job", interruptOnCancel=True)
        assert context.parallelize([1], 1).count() == 1
        between.set()
        assert cancelled.wait(120)
        try:
            ended.append(str(context.parallelize([1], 1).count()))
        except Exception as error:  # noqa: BLE001 - of Java, and of any kind
            ended.append(str(error))

    thread = InheritableThread(target=work)
    thread.start()
    assert between.wait(120)
    session.cancel(context, "job")
    cancelled.set()
    thread.join(120)
    [end] = ended
    assert "cancel" in end.lower()
    assert context.parallelize([1], 1).count() == 1, "the other jobs go on"
