"""`make matrix`: as `test_storm_of_log_writers.py`, for a minute each."""

from __future__ import annotations

from pathlib import Path

import pytest

from mergelog.storm.storm import Enough, Storm, on_s3
from support.lake.s3 import S3Server

A_MINUTE = Enough(appends=200, kills=20, merges=3, compactions=3, seconds=60)


@pytest.mark.parametrize("ordering", ["", "at"], ids=["by instant", "by ordering column"])
def test_L12_sixteen_writers_that_are_killed_for_a_minute_lose_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ordering: str
) -> None:
    storm = Storm((tmp_path / "table").as_uri(), ordering)
    storm.make()
    storm.run(A_MINUTE, seed=len(ordering))
    storm.check()
    with capsys.disabled():
        print(storm.figures)  # noqa: T201


@pytest.mark.parametrize("ordering", ["", "at"], ids=["by instant", "by ordering column"])
def test_L12_sixteen_writers_on_s3_that_are_killed_for_a_minute_lose_nothing(
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ordering: str,
) -> None:
    storm = on_s3(s3_server, monkeypatch, ordering)
    storm.run(A_MINUTE, seed=len(ordering))
    storm.check()
    with capsys.disabled():
        print(storm.figures)  # noqa: T201
