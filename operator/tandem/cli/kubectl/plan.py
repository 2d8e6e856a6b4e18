"""`kubectl tandem plan`: creates a dry-run copy, waits for it, shows its plan and deletes it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group

from tandem.cli import output as output_
from tandem.cli import spec_summary
from tandem.cli.errors import Exit, say
from tandem.cli.kubectl import access as access_
from tandem.cli.kubectl import names, queries
from tandem.cli.kubectl.access import Access
from tandem.cli.kubectl.dry_run import CUT, expected, plan_copy
from tandem.cli.kubectl.flags import Flags
from tandem.cli.kubectl.output.overview import condition_message, reason_of
from tandem.cli.kubectl.output.render import ago, plain, shown, time_text
from tandem.cli.kubectl.read_commands import now_ms
from tandem.cli.output import Output, print_data
from tandem.errors import InvalidSpec, ReferenceNotFound, TandemError
from tandem.json_types import Json
from tandem.kube.client.kinds import TABLE_KIND, path, spec_of, status_of
from tandem.remedies import remedy
from tandem.spec import Operation, load_all
from tandem.spec.common import API_VERSION, LockMode
from tandem.spec.status import ENDED, PLANNED_ONLY, Phase
from tandem.text import human_bytes

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
    named = [names.resource(text) for text in resources]

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
            shown(blocks(requests))
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
        (table,) = await queries.tables(Access(access.api, request.namespace), str(reference))
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
    segments = _some(found.get("segments") or ())
    if found.get("outputs"):
        segments += f" → {_some(found['outputs'])}"
    output = "" if found.get("outputFiles") is None else _files(found["outputFiles"])
    if output and found.get("outputBytes") is not None:
        output += f", about {human_bytes(found['outputBytes'])}"
    cost = found.get("costBytes")
    return [
        ("statement", spec_summary.clause_by_clause(str(found.get("statement") or ""))),
        *spec_summary.lines_of(request.kind, request.spec),
        ("reads", f"version {found.get('readVersion')}: {_files(found.get('inputs', 0))}, "
                  f"{human_bytes(found.get('inputBytes', 0))}"),
        ("segments", segments),
        ("instants", _some(found.get("instants") or ())),
        ("writes", output),
        ("copies", str(found.get("copies") or "")),
        ("cost", "" if cost is None else f"about {human_bytes(cost)} to read and write"),
        ("meets", "\n".join(_meets(conflict) for conflict in request.conflicts) or "nothing"),
    ]  # fmt: skip


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _some(items: Sequence[Any], limit: int = 6) -> str:
    """The first items, equal ones joined, and how many there are; the status may have been
    shortened (`… and 324 more`)."""
    names = [str(item) for item in items]
    total = len(names)
    if names and (cut := CUT.fullmatch(names[-1])):
        names.pop()
        total += int(cut[1]) - 1
    runs = [(name, len(list(group))) for name, group in itertools.groupby(names)]
    parts = [f"{name} (×{count})" if count > 1 else name for name, count in runs[:limit]]
    if total > sum(count for _, count in runs[:limit]):
        parts.append(f"… ({total} in all)")
    return ", ".join(parts)


def _meets(conflict: Mapping[str, Any]) -> str:
    if conflict["means"] == "perhaps":
        return f"{conflict['operation']}, perhaps: not all segments and intervals are known here"
    where = f"on {_some(conflict['segments'])}"
    since = ago(conflict.get("since"), now_ms())
    if conflict["means"] == "rows":
        return f"{conflict['operation']} {where}: both continue; changes of the same row conflict"
    how = "waits too" if conflict.get("state") == "Waiting" else "holds it"
    return f"{conflict['operation']} {where}: would wait for it ({how}, {since})"
