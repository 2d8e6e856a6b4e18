"""After a whole run of the W matrix: merge the outcomes of its workers into one record, and write
`docs/compatibility.md` from it.

    PYTHONPATH=operator:tests:tools python -m support.matrix.record [--begin | --some]

`--begin` deletes the outcomes of an earlier run. Fails without a change if cells are missing; with
`--some`, those that were not played keep their line of the record.
"""

from __future__ import annotations

import sys
from collections import Counter

from compatibility_page import compatibility
from support.matrix.outcomes import RECORD, RECORDING, ROOT, collected, read, write

NOTE = "<!-- Written by `make matrix` from tests/matrix/outcomes.tsv. -->\n\n"


def main(*arguments: str) -> None:
    if "--begin" in arguments:
        for path in RECORDING.glob("*.jsonl"):
            path.unlink()
        return
    outcomes = collected(read() if "--some" in arguments else ())
    write(outcomes)
    (ROOT / "docs" / "compatibility.md").write_text(compatibility(NOTE))
    ours = Counter(o.our_end for o in outcomes)
    theirs = Counter(o.foreign_end for o in outcomes)
    print(f"{len(outcomes)} cells, in {RECORD.name}")  # noqa: T201
    print(f"ours: {dict(ours)}\ntheirs: {dict(theirs)}")  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
