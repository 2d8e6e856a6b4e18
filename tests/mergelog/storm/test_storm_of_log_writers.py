"""Sixteen writers at once: none ends with an error, and each acknowledged row is there once,
although they are killed, beside log compactions and merges: all of it in `make matrix`, for a
minute each, and on S3.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mergelog.storm.storm import Enough, Storm, on_s3
from support.lake.s3 import S3Server

A_MINUTE = Enough(appends=200, kills=20, merges=3, compactions=3, seconds=60)
ORDERINGS = pytest.mark.parametrize("ordering", ["", "at"], ids=["by instant", "by column"])


@pytest.mark.matrix
@ORDERINGS
def test_L12_sixteen_writers_that_are_killed_for_a_minute_lose_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ordering: str
) -> None:
    storm = Storm((tmp_path / "table").as_uri(), ordering)
    storm.make()
    goes_on_for_a_minute(storm, capsys)


@pytest.mark.matrix
@ORDERINGS
def test_L12_sixteen_writers_on_s3_that_are_killed_for_a_minute_lose_nothing(
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ordering: str,
) -> None:
    goes_on_for_a_minute(on_s3(s3_server, monkeypatch, ordering), capsys)


def goes_on_for_a_minute(storm: Storm, capsys: pytest.CaptureFixture[str]) -> None:
    storm.run(A_MINUTE, seed=len(storm.ordering))
    storm.check()
    with capsys.disabled():
        print(storm.figures)  # noqa: T201
