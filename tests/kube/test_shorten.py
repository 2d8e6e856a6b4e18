"""A status stays small however large its plan is."""

from __future__ import annotations

import json

from tandem.kube.controllers.status_writer import LONGEST_LIST, truncated_status
from tandem.spec.status import OperationResult, OperationStatus, Phase, Plan, Reconciled


def test_a_plan_of_ten_thousand_segments_fits_into_a_few_kilobytes() -> None:
    names = tuple(f"f-{number:012x}" for number in range(10_000))
    status = OperationStatus(
        phase=Phase.SUCCEEDED,
        plan=Plan(
            read_version=1, inputs=10_000, input_bytes=1, segments=names, outputs=names,
            steps=names, locks=names,
        ),
        result=OperationResult(
            version=2, segments=names,
            reconciled=Reconciled(by_segment={name: at for at, name in enumerate(names)}),
        ),
    )  # fmt: skip
    short = truncated_status(status.manifest())
    assert len(json.dumps(short)) < 8_000
    assert short["plan"]["segments"][:2] == list(names[:2])
    assert short["plan"]["segments"][-1] == f"… and {10_000 - LONGEST_LIST} more"
    assert short["plan"]["inputs"] == 10_000
    assert "bySegment" not in short["result"]["reconciled"]


def test_a_short_status_is_unchanged() -> None:
    plan = Plan(read_version=41, inputs=4, input_bytes=10, segments=("0", "1"), outputs=("0.1",))
    status = OperationStatus(phase=Phase.RUNNING, plan=plan).manifest()
    assert truncated_status(status) == status


def test_values_beyond_json_or_int64_are_approximated() -> None:
    # The API server would change the one and refuse the other, again and again.
    short = truncated_status(
        {"message": "half \ud800 a pair, ä", "result": {"rows": [10**30, -(10**30)]}}
    )
    assert short["message"] == "half ? a pair, ä"
    assert short["result"]["rows"] == [2**63 - 1, 1 - 2**63]
