"""A small language for scenarios in a cluster: apply, hold a job, wait, compare, look for leaks.

    world = World(cluster, folder)                      # a namespace, locks of its own
    with world.dev(jobs), world.operator():
        table = world.adopt(lakes.loaded(4))            # applies a LakeTable, waits until Ready
        gate = jobs.hold("rewrite")
        compaction = table.apply(table.lake.compaction())
        gate.reached()
        table.apply(table.lake.update("k = 1", v="v + 15")).succeeded()
        gate.go()
        compaction.succeeded()
        table.lake.assert_states(FOUR, plus(FOUR, k_is(1), 15))
        world.assert_nothing_left_behind(table)

Everything goes through the API server as an administrator would; what is compared is read from
the table and from etcd, not from what the operator believes. Waiting polls a condition until a
deadline, and then says what it saw.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import ssl
import threading
import urllib.request
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cluster_access import once_served
from support.cluster.api_proxy import read_kubeconfig
from support.cluster.controllers_here import control_of
from support.cluster.loop_thread import loop_thread
from support.cluster.operator_process import Order, operator_settings
from support.lake.lake import Lake
from support.waiting import LIMIT_S, await_that
from tandem.jobs.runner import JobRunner
from tandem.kube.dev.controller import DevSettings, run_dev
from tandem.kube.operator import run_operator
from tandem.operations.ports import Clock
from tandem.operations.session.options import Interceptor, passthrough
from tandem.spec.common import OPERATIONS, plural
from tandem.spec.resources import Operation
from tandem.spec.status import OperationStatus

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

Json = dict[str, Any]
_OVER = frozenset({"COMPLETED", "FAILED", "SUBMISSION_FAILED"})
ENDED = frozenset({"Succeeded", "Superseded", "Failed"})
_RESTART_S = 0.3
_MERGE = "application/merge-patch+json"


class Refused(Exception):
    """The API server refused a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


def _close(connections: Iterable[http.client.HTTPConnection]) -> None:
    for connection in connections:
        connection.close()


class Client:
    """An administrator's own client, so that the operator's is not tested by itself. One
    connection a thread."""

    def __init__(self, kubeconfig: Path) -> None:
        server, self._tls, self._token = read_kubeconfig(kubeconfig)
        self._address = urlsplit(server)
        self._local = threading.local()
        self._opened: list[http.client.HTTPConnection] = []
        # Not `__del__`: in a cycle, a socket may be finalized before its client, and warns.
        weakref.finalize(self, _close, self._opened)

    def request(self, method: str, path: str, body: object = None, *,
                content_type: str = "application/json") -> Json:  # fmt: skip
        """Raises: Refused."""
        headers = {"Content-Type": content_type, "Authorization": f"Bearer {self._token}"}
        data = None if body is None else json.dumps(body)
        status, text = once_served(lambda: self._answer(method, path, data, headers))
        parsed: Json = json.loads(text) if text.startswith(b"{") else {"message": text.decode()}
        if status >= 400:
            raise Refused(status, str(parsed.get("message", "")))
        return parsed

    def _answer(
        self, method: str, path: str, data: str | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        for last in (False, True):
            connection = self._connection()
            try:
                connection.request(method, path, data, headers)
                answer = connection.getresponse()
                return answer.status, answer.read()
            except (http.client.HTTPException, OSError):
                # A kept connection may have been closed meanwhile.
                connection.close()
                del self._local.connection
                if last:
                    raise
        raise AssertionError("unreachable")

    def _connection(self) -> http.client.HTTPConnection:
        found: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if found is None:
            host, port = self._address.hostname or "", self._address.port
            if isinstance(self._tls, ssl.SSLContext):
                found = http.client.HTTPSConnection(host, port, timeout=30, context=self._tls)
            else:
                found = http.client.HTTPConnection(host, port, timeout=30)
            self._local.connection = found
            self._opened.append(found)
        return found


class Space:
    """One namespace, seen by its administrator."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name

    def url(self, kind: str, name: str = "") -> str:
        if kind == "Event":
            base = f"/api/v1/namespaces/{self.name}/events"
        elif kind == "Pod":
            base = f"/api/v1/namespaces/{self.name}/pods"
        elif kind == "SparkApplication":
            base = f"/apis/sparkoperator.k8s.io/v1beta2/namespaces/{self.name}/sparkapplications"
        else:
            base = f"/apis/tandem.dev/v1alpha1/namespaces/{self.name}/{plural(kind)}"
        return f"{base}/{name}" if name else base

    def create(self, manifest: Mapping[str, Any]) -> Json:
        kind = str(manifest["kind"])
        return self.client.request("POST", self.url(kind), manifest)

    def get(self, kind: str, name: str) -> Json | None:
        try:
            return self.client.request("GET", self.url(kind, name))
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def all(self, kind: str, query: str = "") -> list[Json]:
        items: list[Json] = self.client.request("GET", self.url(kind) + query)["items"]
        return items

    def patch(self, kind: str, name: str, body: Mapping[str, Any]) -> Json:
        return self.client.request("PATCH", self.url(kind, name), body, content_type=_MERGE)

    def patch_status(self, kind: str, name: str, body: Mapping[str, Any]) -> Json:
        url = self.url(kind, name) + "/status"
        return self.client.request("PATCH", url, {"status": body}, content_type=_MERGE)

    def delete(self, kind: str, name: str) -> None:
        try:
            self.client.request("DELETE", self.url(kind, name))
        except Refused as refused:
            if refused.status != 404:
                raise

    def operations(self) -> list[Json]:
        return [item for kind in OPERATIONS for item in self.all(kind)]


class Applied:
    """An object that was applied, as it is now."""

    def __init__(self, space: Space, kind: str, name: str) -> None:
        self.space = space
        self.kind = kind
        self.name = name

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"

    def body(self) -> Json | None:
        return self.space.get(self.kind, self.name)

    @property
    def status(self) -> Json:
        found: Json = (self.body() or {}).get("status", {})
        return found

    @property
    def phase(self) -> str:
        return str(self.status.get("phase", ""))

    def condition(self, type_: str) -> Json:
        found = [c for c in self.status.get("conditions", ()) if c["type"] == type_]
        assert len(found) <= 1
        return found[0] if found else {}

    @property
    def reason(self) -> str:
        return str(self.condition("Succeeded").get("reason", ""))

    def wait(self, test: Callable[[Json], bool], limit_s: float = LIMIT_S) -> Applied:
        """Until its status is such."""
        seen: list[Json] = [{}]

        def holds() -> bool:
            seen[0] = self.status
            return test(seen[0])

        await_that(holds, lambda: f"{self}: {json.dumps(seen[0])[:3000]}", limit_s)
        return self

    def reaches(self, *phases: str, limit_s: float = LIMIT_S) -> Applied:
        """Until it is in one of these phases; an end that is none of them is a failure."""

        def arrived(status: Json) -> bool:
            phase = status.get("phase")
            wrong = phase in ENDED and phase not in phases
            assert not wrong, f"{self}: {json.dumps(status)[:3000]}"
            return phase in phases

        return self.wait(arrived, limit_s)

    def ended(self, limit_s: float = LIMIT_S) -> OperationStatus:
        """Its final status, whatever that is."""
        self.wait(lambda status: status.get("phase") in ENDED, limit_s)
        return OperationStatus.model_validate(self.status)

    def succeeded(self, limit_s: float = LIMIT_S) -> OperationStatus:
        self.reaches("Succeeded", limit_s=limit_s)
        return OperationStatus.model_validate(self.status)

    def failed(self, reason: str = "", limit_s: float = LIMIT_S) -> OperationStatus:
        self.reaches("Failed", limit_s=limit_s)
        assert reason in ("", self.reason), self.status
        return OperationStatus.model_validate(self.status)

    def set(self, **spec: Any) -> None:
        """Change fields of its spec."""
        self.space.patch(self.kind, self.name, {"spec": spec})

    def delete(self) -> None:
        """Ask for its deletion."""
        self.space.delete(self.kind, self.name)

    def gone(self, limit_s: float = LIMIT_S) -> None:
        """Until it is no more: every finalizer has let go."""
        await_that(lambda: self.body() is None, lambda: f"still there: {self.body()}", limit_s)


class Table:
    """A table and its LakeTable."""

    def __init__(self, space: Space, lake: Lake, name: str) -> None:
        self.lake = lake
        self.applied = Applied(space, "LakeTable", name)
        self.name = name
        self._space = space

    def manifest(self, operation: Operation, name: str = "", **spec: Any) -> Json:
        found = operation.manifest()
        found["metadata"] = {"name": name or f"{self.name}-{operation.metadata.name}"}
        found["spec"] = {**found["spec"], "tableRef": {"name": self.name}, **spec}
        return found

    def apply(self, operation: Operation, name: str = "", **spec: Any) -> Applied:
        """Hand an operation on this table to the API server."""
        made = self._space.create(self.manifest(operation, name, **spec))
        return Applied(self._space, made["kind"], made["metadata"]["name"])


class Etcd:
    """What lies in etcd under a prefix, by its HTTP gateway: not by our own client."""

    def __init__(self, endpoints: tuple[str, ...], prefix: str) -> None:
        self._endpoints = endpoints
        self.prefix = prefix

    def keys(self) -> dict[str, Json]:
        """Key → its value as JSON (`{}` where it is none) with `lease`."""
        start = self.prefix.encode()
        end = start[:-1] + bytes([start[-1] + 1])
        parsed = self._ask(
            "kv/range", {"key": _b64(start), "range_end": _b64(end), "serializable": False}
        )
        found = {}
        for entry in parsed.get("kvs", ()):
            value = base64.b64decode(entry.get("value", "")).decode(errors="replace")
            content = json.loads(value) if value.startswith("{") else {}
            name = base64.b64decode(entry["key"]).decode()
            found[name] = {**content, "lease": entry.get("lease", "0")}
        return found

    def locks(self, location: str = "") -> dict[str, Json]:
        """Entries of operations on a table ("": on any)."""
        return {
            key: value
            for key, value in self.keys().items()
            if "/operations/" in key
            and location in value["table"]
            and not value["table"].startswith("tandem:")
        }

    def put(self, key: str, value: bytes) -> None:
        """Write as another client that may use the prefix."""
        self._ask("kv/put", {"key": _b64(key.encode()), "value": _b64(value)})

    def remove(self, key: str) -> None:
        self._ask("kv/deleterange", {"key": _b64(key.encode())})

    def keys_with_lease(self) -> list[str]:
        """Keys that live only as long as their lease is renewed."""
        return [key for key, value in self.keys().items() if value["lease"] != "0"]

    def _ask(self, method: str, body: Json) -> Json:
        problem: OSError | None = None
        for endpoint in self._endpoints:
            request = urllib.request.Request(
                f"http://{endpoint}/v3/{method}", json.dumps(body).encode()
            )
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    parsed: Json = json.load(answer)
                    return parsed
            except OSError as error:
                problem = error
        raise AssertionError(f"no member of etcd answers: {problem}")


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@dataclass
class World:
    """A namespace with operators and a `dev` of its own on the cluster that tests share."""

    cluster: Cluster
    folder: Path
    space: Space
    endpoints: tuple[str, ...]
    prefix: str
    made: int = 0
    restarts: list[str] = field(default_factory=list)

    @classmethod
    def make(cls, cluster: Cluster, folder: Path,
             endpoints: tuple[str, ...] | None = None) -> World:  # fmt: skip
        name = cluster.namespace()
        space = Space(Client(cluster.kubeconfig), name)
        ends = endpoints or (cluster.etcd_endpoint,)
        return cls(cluster, folder, space, ends, cluster.lock_prefix())

    @property
    def etcd(self) -> Etcd:
        return Etcd(self.endpoints, self.prefix)

    def order(self, **changes: Any) -> Order:
        """An operator of this namespace alone, as its service account."""
        fields: dict[str, Any] = {
            "kubeconfig": str(self.cluster.operator_kubeconfig),
            "namespaces": (self.space.name,),
            "endpoints": self.endpoints,
            "prefix": self.prefix,
            "election": self.space.name,
            **changes,
        }
        return Order(**fields)

    @contextmanager
    def operator(self, interceptor: Interceptor = passthrough, *, in_pod: bool = False,
                 clock: Clock | None = None, **changes: Any) -> Iterator[None]:  # fmt: skip
        """An operator in a thread of this process. `in_pod`: if it ends by itself, it is started
        again, as a kubelet does; else that is a failure."""
        settings = operator_settings(self.order(**changes))
        control = control_of(interceptor, here=clock is not None)

        async def main(stop: asyncio.Event, ready: asyncio.Event) -> None:
            while True:
                try:
                    await run_operator(
                        settings, control_factory=control, stop=stop, working=ready, clock=clock
                    )
                except Exception as error:
                    if not in_pod:
                        raise
                    self.restarts.append(str(error))
                    await asyncio.sleep(_RESTART_S)
                if stop.is_set():
                    return

        with loop_thread("operator", main):
            yield

    @contextmanager
    def dev(self, jobs: JobRunner) -> Iterator[None]:
        """`tandem dev` in a thread of this process, its jobs run by `jobs`."""
        settings = DevSettings(namespaces=(self.space.name,), kubeconfig=self.cluster.kubeconfig)

        async def main(stop: asyncio.Event, ready: asyncio.Event) -> None:
            await run_dev(settings, runner=jobs, stop=stop, ready=ready)

        with loop_thread("dev", main):
            yield

    def adopt(self, lake: Lake, name: str = "", *, wait: bool = True, **spec: Any) -> Table:
        """Apply a LakeTable for a table, and wait until it is adopted."""
        self.made += 1
        table = Table(self.space, lake, name or f"t{self.made}")
        self.space.create(
            {
                "apiVersion": "tandem.dev/v1alpha1",
                "kind": "LakeTable",
                "metadata": {"name": table.name},
                "spec": {"location": lake.location, **spec},
            }
        )
        if wait:
            self.wait_ready(table)
        return table

    def wait_ready(self, table: Table) -> None:
        def ready(status: Json) -> bool:
            return any(
                c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ())
            )

        table.applied.wait(ready)

    def story(self) -> str:
        """The whole state, to find out why a test failed."""
        lines = []
        for kind in ("LakeTable", *OPERATIONS, "SparkApplication"):
            for body in self.space.all(kind):
                meta = {k: body["metadata"].get(k) for k in ("finalizers", "deletionTimestamp")}
                parsed = json.dumps({**meta, **body.get("status", {})})[:900]
                lines.append(f"{kind}/{body['metadata']['name']} {parsed}")
        lines += [f"{key} {json.dumps(value)[:300]}" for key, value in self.etcd.keys().items()]
        return "\n".join(lines)

    # Afterwards

    def assert_nothing_left_behind(self, *tables: Table, limit_s: float = LIMIT_S) -> None:
        """No locks, leases, finalizers, Spark applications, files or half-done attempts. What
        is let go of after an end (a lease that runs out, garbage) has `limit_s` for it."""
        await_that(
            lambda: not self.left(*tables), lambda: f"{self.left(*tables)}\n{self.story()}", limit_s
        )

    def left(self, *tables: Table) -> list[str]:
        """What lies around, in words."""
        found = []
        ended: dict[str, Json] = {}
        names = {table.name for table in tables}
        for body in self.space.operations():
            if body["spec"]["tableRef"]["name"] not in names:
                continue
            name = f"{body['kind']}/{body['metadata']['name']}"
            if body.get("status", {}).get("phase") not in ENDED:
                found.append(f"{name} has not ended: {body.get('status')}")
            elif body["metadata"].get("finalizers"):
                found.append(f"{name} keeps {body['metadata']['finalizers']}")
            ended[body["metadata"]["uid"]] = body
        for body in self.space.all("SparkApplication"):
            labels = body["metadata"].get("labels", {})
            if labels.get("tandem.dev/table") not in names:
                continue
            owners = {o["uid"] for o in body["metadata"].get("ownerReferences", ())}
            of = [ended[uid] for uid in owners if uid in ended]
            # Those that have ended stay, for their logs, as long as what they belong to.
            state = body.get("status", {}).get("applicationState", {}).get("state", "")
            if not of or state not in _OVER:
                found.append(f"SparkApplication/{body['metadata']['name']} is {state or 'new'}")
        for table in tables:
            found += [f"lock {key}" for key in self.etcd.locks(table.lake.location)]
            found += [f"file {path}" for path in sorted(table.lake.unreachable())]
            found += unfinished(table.lake)
        return found


def unfinished(lake: Lake) -> list[str]:
    """Attempts that neither committed nor were closed, as the files under the table say."""
    found = []
    # Those of the log of a merge-on-read table lie below the log.
    # Of the module `glob`: that of a path fails where a folder is removed meanwhile.
    pattern = f"{lake.path}/_tandem/**/operations/*/attempts/*/attempt.json"
    for claim in map(Path, sorted(glob(pattern, recursive=True))):
        folder = claim.parent
        operation = folder.parent.parent
        parsed = operation / "result.json"
        result = json.loads(parsed.read_text()) if parsed.exists() else {}
        # An attempt without a plan wrote nothing that could be found or committed.
        planned = (folder / "plan.json").exists()
        over = (folder / "ended.json").exists() or int(result.get("attempt", 0)) >= int(folder.name)
        if planned and not over:
            found.append(f"attempt {operation.name}/{folder.name} is not over")
    return found
