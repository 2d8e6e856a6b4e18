"""`kubectl tandem plan`: creates a dry-run copy, waits for it, shows its plan and deletes it."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group

from tandem.cli import output as output_
from tandem.cli import plan_report
from tandem.cli.errors import Exit, say
from tandem.cli.kubectl import access as access_
from tandem.cli.kubectl.access import Access
from tandem.cli.kubectl.arguments import Flags, parse_resource
from tandem.cli.kubectl.commands import now_ms
from tandem.cli.kubectl.overview import condition_message, reason_of
from tandem.cli.kubectl.render import ago, plain, time_text
from tandem.cli.output import Output, print_data, print_table
from tandem.cli.report import CUT, shortened_names
from tandem.errors import InvalidSpec, ReferenceNotFound, TandemError
from tandem.json_types import Json
from tandem.kube.client.resources import TABLE_KIND, path, spec_of, status_of
from tandem.locks.rules import MATRIX, Compatibility
from tandem.remedies import remedy
from tandem.spec import Operation, load_all
from tandem.spec.common import API_VERSION, OPERATIONS, PLAN_LABEL, LockMode, Mode
from tandem.spec.status import ENDED, LOG_INSTANT, MERGES_LOG, PLANNED_ONLY, WHOLE_LOG, Phase, Plan
from tandem.storage.paths import LOG_FOLDER

# The dry-run copy of an operation, and the operations that a plan would conflict with. Pure.
#
# The copy is the same operation with another name and `spec.dryRun`: the operator plans it against
# the table as it is, and neither locks nor writes anything.


TTL_S = 300
"""The operator deletes the copy after so long if this process could not."""
_WHOLE = "the whole table"
_INTERVAL = re.compile(r"(…|\d)\S*/(…|\d)\S*")
"""An interval among the segments of a lock: `2013-03-02T00:00:00Z/…`."""
_MOST_NAME = 40
_RUN = re.compile(r"(\d{1,18})-(\d{1,18})")


def plan_copy(kind: str, name: str, spec: Mapping[str, Any]) -> Json:
    """The copy to create for an operation of this kind, name and spec."""
    left = ("suspend", "priority", "dependsOn", "ttlSecondsAfterFinished")
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {
            "name": f"{name[:_MOST_NAME].rstrip('-.')}-plan-{secrets.token_hex(3)}",
            "labels": {PLAN_LABEL: "true"},
        },
        "spec": {
            **{key: value for key, value in spec.items() if key not in left},
            "dryRun": True,
            "ttlSecondsAfterFinished": TTL_S,
        },
    }


def expected(
    kind: str,
    plan: Mapping[str, Any],
    locks: Sequence[Mapping[str, Any]],
    itself: str = "",
    *,
    exclusive: bool = False,
) -> list[Json]:
    """The operations that hold segments of a plan, and the consequence: `waits`, `rows` (both run;
    rows that both change are reconciled at the commit) or, if the statuses do not name all
    segments and the named ones differ, `perhaps`.

    Args:
        locks: those of the table's status.
        itself: the operation of the plan, which does not wait for itself.
        exclusive: it locks its chunks exclusively; which these are is not in a status.
    """
    if OPERATIONS[kind].on_log:
        return _expected_of_log(kind, plan, locks, itself)
    wanted = set(map(str, plan.get("segments") or ()))
    if MERGES_LOG in (plan.get("locks") or ()):
        wanted.add(LOG_FOLDER)
    named = {name for name in wanted if not CUT.fullmatch(name)}
    held = tuple(map(str, plan.get("locks") or ()))
    # A plan that locks intervals meets others within them, too.
    vague = exclusive or named != wanted or any(" interval " in lock for lock in held)
    whole = any(lock.endswith(" the table") for lock in held)
    mode = Mode.EXCLUSIVE if exclusive else OPERATIONS[kind].mode
    found = []
    for lock in locks:
        if lock.get("operation") == itself or lock.get("mode") not in set(Mode):
            continue
        beside = MATRIX[mode, Mode(lock["mode"])]
        theirs = set(map(str, lock.get("segments") or ()))
        if theirs and all(name == WHOLE_LOG or name.startswith(LOG_INSTANT) for name in theirs):
            continue  # a log has locks of its own
        common = theirs if whole else named if _WHOLE in theirs else named & theirs
        unnamed = vague or lock.get("more") or any(map(_INTERVAL.fullmatch, theirs))
        if beside is Compatibility.YES or not (named or vague or whole):
            continue
        if not (common or unnamed):
            continue
        means = "rows" if beside is Compatibility.ROWS else "waits"
        found.append(_conflict(lock, means if common else "perhaps", sorted(common)))
    return found


def _conflict(lock: Mapping[str, Any], means: str, segments: Sequence[str]) -> Json:
    return {
        "operation": lock["operation"],
        "means": means,
        "state": lock.get("state"),
        "since": lock.get("since"),
        "segments": segments,
    }


def _expected_of_log(
    kind: str, plan: Mapping[str, Any], locks: Sequence[Mapping[str, Any]], itself: str
) -> list[Json]:
    """`expected` for a log compaction: its plan names runs of instants (`3-7`), and a lock the
    first instant of each block."""
    runs = [
        range(int(run[1]), int(run[2]) + 1)
        for name in plan.get("instants") or ()
        if (run := _RUN.fullmatch(str(name)))
    ]
    cut = len(runs) < len(plan.get("instants") or ())
    found: list[Json] = []
    for lock in locks:
        if lock.get("operation") == itself or lock.get("mode") not in set(Mode):
            continue
        names = [str(name) for name in lock.get("segments") or ()]
        theirs = {name for name in names if name.startswith(LOG_INSTANT)}
        if MATRIX[OPERATIONS[kind].mode, Mode(lock["mode"])] is Compatibility.YES or not runs:
            continue
        common = {
            name
            for name in theirs
            if any(int(name.removeprefix(LOG_INSTANT)) in each for each in runs)
        }
        if common or (theirs and (cut or lock.get("more"))):
            ordered = sorted(common, key=lambda name: int(name.removeprefix(LOG_INSTANT)))
            found.append(_conflict(lock, "waits" if common else "perhaps", ordered))
    return found


_POLL_S = 0.3
_GOODBYE_S = 10.0


@dataclass
class PlanRequest:
    """One operation to plan, or a LakeTable whose next compaction is to be shown."""

    kind: str
    namespace: str
    name: str
    spec: Mapping[str, Any] = field(default_factory=dict)
    exists: bool = False
    outcome: Json = field(default_factory=dict)
    """The copy in its final state, `{}` if it has not ended in time."""
    conflicts: list[Json] = field(default_factory=list)

    @property
    def id(self) -> str:
        return f"{self.kind}/{self.name}"


def plan(
    flags: Flags, files: Sequence[str], resources: Sequence[str], *, output: Output, wait_s: float
) -> Exit:
    """Plan operations. Exit codes as those of `tandem plan`; `FAILED` if a plan is not there in
    time."""
    if not files and not resources:
        raise InvalidSpec(
            "nothing to plan",
            resource="plan",
            expected="-f FILE, or KIND/NAME of an existing resource",
        )
    loaded = load_all(files, references=False) if files else []
    named = [parse_resource(text) for text in resources]

    async def work(access: Access) -> Exit:
        requests = []
        for resource in loaded:
            if not isinstance(resource, Operation):
                say(f"{resource.id}: skipped; only operations are planned by their files")
                continue
            given = "namespace" in resource.metadata.model_fields_set
            namespace = resource.metadata.namespace if given else access.namespace
            manifest = resource.manifest()
            requests.append(
                PlanRequest(resource.kind_name, namespace, resource.name, manifest["spec"])
            )
        for kind, name in named:
            found = await access.get(path(kind, access.namespace, name))
            requests.append(PlanRequest(kind, access.namespace, name, spec_of(found), exists=True))
            if kind == TABLE_KIND:
                requests[-1].outcome = found
        await _plan_all(access, requests, wait_s)
        if output is Output.TABLE:
            print_table(blocks(requests))
        else:
            print_data([_document(request) for request in requests], output)
        return _exit(requests)

    return access_.run(flags, work)


async def _plan_all(access: Access, requests: Sequence[PlanRequest], wait_s: float) -> None:
    made: list[tuple[str, str, str]] = []
    try:
        async with asyncio.TaskGroup() as group:
            for request in requests:
                if request.kind != TABLE_KIND:
                    group.create_task(_plan_one(access, request, made, wait_s))
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    finally:
        # Ours, whatever happens: Ctrl-C comes by here too.
        async with asyncio.timeout(_GOODBYE_S):
            for kind, namespace, name in made:
                await _delete(access, kind, namespace, name)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure to report of several: the first TandemError."""
    wanted = errors.subgroup(TandemError) or errors
    error: BaseException = wanted
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _delete(access: Access, kind: str, namespace: str, name: str) -> None:
    try:
        await access.delete(path(kind, namespace, name))
    except ReferenceNotFound:
        pass  # gone, or never created
    except TandemError as error:
        say(f"{kind}/{name} could not be deleted: {error.message}; the operator deletes it")


async def _plan_one(
    access: Access, request: PlanRequest, made: list[tuple[str, str, str]], wait_s: float
) -> None:
    body = plan_copy(request.kind, request.name, request.spec)
    name = body["metadata"]["name"]
    made.append((request.kind, request.namespace, name))
    await access.create(path(request.kind, request.namespace), body)
    say(f"{request.id}: planning")
    loop = asyncio.get_running_loop()
    until = loop.time() + wait_s
    while True:
        found = await access.get(path(request.kind, request.namespace, name))
        request.outcome = found
        if status_of(found).get("phase") in ENDED:
            break
        if loop.time() > until:
            return
        await asyncio.sleep(_POLL_S)
    reference = (spec_of(found).get("tableRef") or {}).get("name", "")
    try:
        (table,) = await access_.tables(Access(access.api, request.namespace), str(reference))
    except TandemError:
        return  # then there is no plan, and the message says why
    locks = status_of(table).get("locks") or ()
    itself = request.id if request.exists else ""
    plan, exclusive = status_of(found).get("plan") or {}, spec_of(found).get("lockMode")
    request.conflicts = expected(
        request.kind, plan, locks, itself, exclusive=exclusive == LockMode.EXCLUSIVE
    )


def _exit(requests: Sequence[PlanRequest]) -> Exit:
    operations = [request for request in requests if request.kind != TABLE_KIND]
    phases = [status_of(request.outcome).get("phase") for request in operations if request.outcome]
    well = all(phase in (Phase.SUCCEEDED, Phase.SUPERSEDED) for phase in phases)
    return Exit.OK if well and len(phases) == len(operations) else Exit.FAILED


def _document(request: PlanRequest) -> Json:
    """The resource with the status of its copy, and its conflicts."""
    return {
        "apiVersion": API_VERSION,
        "kind": request.kind,
        "metadata": {"name": request.name, "namespace": request.namespace},
        "spec": dict(request.spec),
        "status": dict(status_of(request.outcome)),
        **({"conflicts": request.conflicts} if request.kind != TABLE_KIND else {}),
    }


def blocks(requests: Sequence[PlanRequest]) -> Group:
    """One block per request, as text."""
    return output_.blocks(
        (f"{request.id}: {_headline(request)}", _lines(request)) for request in requests
    )


def _headline(request: PlanRequest) -> str:
    status = status_of(request.outcome)
    if request.kind == TABLE_KIND:
        return "what automatic compaction does next"
    if status.get("phase") not in ENDED:
        if status.get("observedGeneration", -1) == -1:
            return "no operator has seen it within the timeout"
        why = f"{reason_of(request.outcome)}, {condition_message(request.outcome)}"
        return f"not planned in time: {why}"
    if status["phase"] == Phase.FAILED:
        return f"would fail: {reason_of(request.outcome)}"
    message = condition_message(request.outcome)
    return "Planned" if message == PLANNED_ONLY else message or str(status["phase"])


def _lines(request: PlanRequest) -> list[tuple[str, str]]:
    status = status_of(request.outcome)
    if request.kind == TABLE_KIND:
        coming = status.get("nextCompaction") or {}
        return [
            ("next", str(coming.get("what") or "nothing")),
            ("at (UTC)", time_text(coming.get("nextTime"))),
            ("why not now", str(coming.get("why", ""))),
        ]
    if status.get("phase") == Phase.FAILED:
        return [
            ("why", condition_message(request.outcome)),
            ("to do", plain(remedy(reason_of(request.outcome)))),
        ]
    found = status.get("plan")
    if not found:
        return []
    asked = plan_report.lines_of(request.kind, request.spec)
    return [
        *plan_report.lines_of_plan(Plan.model_validate(found), asked),
        ("meets", "\n".join(_meets(conflict) for conflict in request.conflicts) or "nothing"),
    ]


def _meets(conflict: Mapping[str, Any]) -> str:
    if conflict["means"] == "perhaps":
        return f"{conflict['operation']}, perhaps: not all segments and intervals are known here"
    where = f"on {shortened_names(conflict['segments'])}"
    since = ago(conflict.get("since"), now_ms())
    if conflict["means"] == "rows":
        return f"{conflict['operation']} {where}: both continue; changes of the same row conflict"
    how = "waits too" if conflict.get("state") == "Waiting" else "holds it"
    return f"{conflict['operation']} {where}: would wait for it ({how}, {since})"
