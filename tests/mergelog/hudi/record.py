"""`python -m mergelog.hudi.record`: run the traces on Apache Hudi, and keep its rows in
`answers.json`. Needs what `tools/setup-hudi.sh` makes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from mergelog.hudi.trace import DIFFERENCES, SAME

FOLDER: Final = Path(__file__).resolve().parent
ANSWERS: Final = FOLDER / "answers.json"
SETUP: Final = FOLDER.parents[2] / "tools" / "setup-hudi.sh"


def recorded() -> dict[str, list[Any]]:
    """The rows of each trace after each of its steps, as Hudi gave them."""
    found: dict[str, list[Any]] = json.loads(ANSWERS.read_text())
    return found


def asked() -> dict[str, list[Any]]:
    """The same from Hudi itself. Raises: CalledProcessError."""
    setup = subprocess.run([str(SETUP)], stdout=subprocess.PIPE, text=True, check=True)
    with tempfile.TemporaryDirectory(prefix="tandem-hudi-") as folder:
        traces, answers = Path(folder, "traces.json"), Path(folder, "answers.json")
        traces.write_text(json.dumps([each.to_json() for each in (*SAME, *DIFFERENCES)]))
        command = [setup.stdout.strip(), str(FOLDER / "session.py"), str(traces), str(answers)]
        subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, check=True)
        found: dict[str, list[Any]] = json.loads(answers.read_text())
        return found


def main() -> None:
    found = asked()
    lines = []
    for name, steps in found.items():
        rows = ",\n".join(json.dumps(after, ensure_ascii=False) for after in steps)
        lines.append(f"{json.dumps(name)}: [\n{rows}\n]")
    before = ANSWERS.read_text() if ANSWERS.is_file() else ""
    ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    changed = "changed" if ANSWERS.read_text() != before else "unchanged"
    sys.stderr.write(f"{ANSWERS.name}: rows of {len(found)} traces, {changed}\n")


if __name__ == "__main__":
    main()
