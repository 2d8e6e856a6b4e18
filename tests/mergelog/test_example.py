"""The example of `docs/merge-on-read.md` prints what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_example_prints_what_its_page_shows(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "merge-on-read.md").read_text()
    (block,) = (
        block
        for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL)
        if "upserts.py" in block
    )
    found = block.split("$ ")[1:]
    assert len(found) == 2
    for entry in found:
        command, _, output = entry.partition("\n")
        words = shlex.split(command.replace("/tmp/orders", str(tmp_path / "orders")))
        words[:1] = {
            ".venv/bin/python": [sys.executable],
            ".venv/bin/tandem": [sys.executable, "-m", "tandem.cli.main"],
        }[words[0]]
        printed = subprocess.run(
            words,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "operator")},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        assert printed.split() == output.split(), command
