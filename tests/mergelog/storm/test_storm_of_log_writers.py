"""Sixteen writers at once: none ends with an error, and each acknowledged row is there once,
although they are killed, beside log compactions and merges. `matrix_storm_of_log_writers.py` takes
longer.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mergelog.storm.storm import Enough, Storm, on_s3
from support.lake.s3 import S3Server

ENOUGH = Enough(appends=48, kills=6, rest_s=0.5)


@pytest.mark.matrix
def test_L12_sixteen_writers_that_are_killed_lose_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storm = Storm((tmp_path / "table").as_uri(), "at")
    storm.make()
    storm.run(ENOUGH, seed=1)
    storm.check()
    with capsys.disabled():
        print(storm.figures)  # noqa: T201


@pytest.mark.matrix
def test_L12_sixteen_writers_on_s3_that_are_killed_lose_nothing(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    storm = on_s3(s3_server, monkeypatch)
    storm.run(ENOUGH, seed=2)
    storm.check()
    with capsys.disabled():
        print(storm.figures)  # noqa: T201
