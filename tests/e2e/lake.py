"""Tables on the S3 server in the cluster, and the resources that work on them.

What is compared is read from the store by two readers; what is left over is looked for in the
API server and in the store. Neither is what the operator believes.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
from deltalake import DeltaTable
from obstore.store import S3Store

from e2e.install import BUCKET, ENDPOINT, LAKE, PORT, STORE, Keys
from e2e.kube_api import Json, condition, until
from e2e.target import Target
from tandem.delta import scan
from tandem.delta.log.delta_log import DeltaLog
from tandem.spec.common import plural
from tandem.storage import open_store

API = f"/apis/tandem.dev/v1alpha1/namespaces/{LAKE}"
APPLICATIONS = f"/apis/sparkoperator.k8s.io/v1beta2/namespaces/{LAKE}/sparkapplications"
ENDED = frozenset({"Succeeded", "Superseded", "Failed"})


@dataclass
class Lake:
    """The store, and who works on it."""

    target: Target
    keys: Keys

    @contextmanager
    def store(self) -> Iterator[str]:
        """The S3 server's URL for this machine, for the length of the block."""
        kube = self.target.kube
        if self.target.node is not None:
            # As near as it is to pods, for what is measured.
            found = kube.get(f"/api/v1/namespaces/{STORE}/services/s3") or {}
            yield f"http://{found['spec']['clusterIP']}:{PORT}"
            return
        with kube.forwarded(STORE, "service/s3", PORT) as address:
            yield f"http://{address}"

    def upload(self, folder: Path, name: str) -> None:
        """A table's folder as `s3://lake/NAME`; its log last, as a writer would have it."""
        files = sorted(
            (path for path in folder.rglob("*") if path.is_file()),
            key=lambda path: ("_delta_log" in path.parts, path),
        )
        with self.store() as url, ThreadPoolExecutor(4) as pool:
            bucket = self._client(url)

            def put(path: Path) -> None:
                key = f"{name}/{path.relative_to(folder).as_posix()}"
                obstore.put(bucket, key, io.BytesIO(path.read_bytes()))

            list(pool.map(put, files))

    def objects(self, name: str) -> dict[str, datetime]:
        """When each object of a table was written last: to the second, as S3 has it, or better
        where the node's disk can be looked at."""
        if self.target.node is not None:
            volumes = "pods/*/volumes/kubernetes.io~empty-dir/data"
            [table] = self.target.node.place.kubelet.glob(f"{volumes}/buckets/{BUCKET}/{name}")
            return {
                path.relative_to(table).as_posix(): datetime.fromtimestamp(
                    path.stat().st_mtime, UTC
                )
                for path in table.rglob("*")
                if path.is_file()
            }
        with self.store() as url:
            pages = obstore.list(self._client(url), prefix=f"{name}/")
            return {
                each["path"].removeprefix(f"{name}/"): each["last_modified"]
                for page in pages
                for each in page
            }

    def read_both(self, name: str) -> tuple[pa.Table, pa.Table]:
        """The rows as our reader and as deltalake's sees them."""
        with self.store() as url:
            store = open_store(f"s3://{BUCKET}/{name}", options(url), environ=self.environ)
            log = DeltaLog(store)
            ours = scan.scan(log.snapshot(), log.store).read_all()
            more = {"AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
            theirs = DeltaTable(
                f"s3://{BUCKET}/{name}", storage_options={**self.environ, **more}
            ).scan()
            return ours, pa.table(theirs)

    @property
    def environ(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": self.keys.access,
            "AWS_SECRET_ACCESS_KEY": self.keys.secret,
        }

    def table(self, name: str) -> Json:
        """The LakeTable of what was uploaded as NAME."""
        return {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "LakeTable",
            "metadata": {"name": name, "namespace": LAKE},
            "spec": {
                "location": f"s3://{BUCKET}/{name}",
                "storage": {"secretRef": {"name": "lake"}, "options": options(ENDPOINT)},
            },
        }

    def apply(self, *resources: Json) -> list[Applied]:
        """`kubectl apply` in the tables' namespace."""
        placed = [
            {**resource, "metadata": {**resource["metadata"], "namespace": LAKE}}
            for resource in resources
        ]
        self.target.kube.apply(*placed)
        return [Applied(self, each["kind"], each["metadata"]["name"]) for each in placed]

    def adopt(self, name: str) -> Applied:
        """Apply the LakeTable, and wait until it is ready."""
        [applied] = self.apply(self.table(name))
        until(lambda: condition(applied.read(), "Ready").get("status") == "True", applied.described)
        return applied

    def applications(self) -> list[Json]:
        return self.target.kube.items(APPLICATIONS)

    def pods(self, role: str = "", application: str = "") -> list[Json]:
        """Pods of jobs that have not ended."""
        found = self.target.kube.pods(LAKE)
        return [
            pod
            for pod in found
            if pod["status"].get("phase") not in {"Succeeded", "Failed"}
            and (not role or pod["metadata"].get("labels", {}).get("spark-role") == role)
            and (not application or pod["metadata"]["name"].startswith(application))
        ]

    def left_behind(self) -> list[str]:
        """What still runs or waits although every operation has ended."""
        over = {"COMPLETED", "FAILED", "SUBMISSION_FAILED"}
        found = [
            f"SparkApplication {each['metadata']['name']}"
            for each in self.applications()
            if each.get("status", {}).get("applicationState", {}).get("state") not in over
        ]
        found += [f"pod {pod['metadata']['name']}" for pod in self.pods()]
        for path in ("services", "configmaps", "persistentvolumeclaims"):
            found += [
                f"{path} {each['metadata']['name']}"
                for each in self.target.kube.items(f"/api/v1/namespaces/{LAKE}/{path}")
                if each["metadata"]["name"] != "kube-root-ca.crt"
                and not each["metadata"].get("ownerReferences")
            ]
        for table in self.target.kube.items(f"{API}/laketables"):
            status = table.get("status", {})
            for field in ("runningOperations", "heldLocks"):
                if status.get(field):
                    found.append(f"{table['metadata']['name']} {field}: {status[field]}")
        return found

    def nothing_is_left_behind(self) -> None:
        """Waits: pods take their time to end, and a table's status follows."""
        until(lambda: not self.left_behind(), lambda: self.left_behind(), within_s=90)

    def _client(self, url: str) -> S3Store:
        return S3Store(
            BUCKET,
            endpoint=url,
            region="us-east-1",
            access_key_id=self.keys.access,
            secret_access_key=self.keys.secret,
            client_options={"allow_http": True},
        )


@dataclass(frozen=True)
class Applied:
    """A resource in the cluster."""

    lake: Lake
    kind: str
    name: str

    @property
    def path(self) -> str:
        return f"{API}/{plural(self.kind)}/{self.name}"

    def read(self) -> Json:
        """As it is now; empty once it is gone."""
        return self.lake.target.kube.get(self.path) or {}

    @property
    def phase(self) -> str:
        return str(self.read().get("status", {}).get("phase", ""))

    def described(self) -> str:
        """What a person would look at who wonders why it is not done."""
        status = json.dumps(self.read().get("status", {}))
        pods = [
            (pod["metadata"]["name"], pod["status"].get("phase"), [
                state.get("state") for state in pod["status"].get("containerStatuses", ())
            ])
            for pod in self.lake.target.kube.pods(LAKE)
        ]  # fmt: skip
        return f"{self.kind}/{self.name}: {status}; pods: {pods}"

    def reason(self) -> str:
        """Why it is as it is, while at work and afterwards."""
        found = self.read()
        at_work = condition(found, "Reconciling")
        described = at_work if at_work.get("status") == "True" else condition(found, "Succeeded")
        return str(described.get("reason", ""))

    def wait(self, *phases: str, within_s: float = 300) -> str:
        """Until it is in one of these phases (any end by default); which."""
        wanted = set(phases) or ENDED

        def reached() -> str | None:
            phase = self.phase
            if phase in ENDED and phase not in wanted:
                raise AssertionError(f"ended otherwise: {self.described()}")
            return phase if phase in wanted else None

        return until(reached, self.described, within_s=within_s)

    def succeeded(self, within_s: float = 300) -> Json:
        """Wait for success; its result."""
        self.wait("Succeeded", within_s=within_s)
        result: Json = self.read()["status"].get("result") or {}
        return result

    def failed(self, reason: str, within_s: float = 300) -> str:
        """Wait for the failure; it must be for that reason. Its message."""
        self.wait("Failed", within_s=within_s)
        described = condition(self.read(), "Succeeded")
        assert described.get("reason") == reason, self.described()
        return str(described["message"])

    def application(self) -> Json | None:
        """The SparkApplication of its newest attempt."""
        uid = self.read().get("metadata", {}).get("uid")
        mine = [
            each
            for each in self.lake.applications()
            if any(owner["uid"] == uid for owner in each["metadata"].get("ownerReferences", ()))
        ]
        return max(
            mine, key=lambda each: int(each["metadata"]["labels"]["tandem.dev/attempt"]),
            default=None,
        )  # fmt: skip

    def running(self, role: str = "driver", within_s: float = 180) -> Json:
        """Wait until a pod of its job with that role runs; the pod."""

        def found() -> Json | None:
            application = self.application()
            if self.phase in ENDED:
                raise AssertionError(f"it ended too soon: {self.described()}")
            for pod in self.lake.target.kube.pods(LAKE) if application else ():
                labels = pod["metadata"].get("labels", {})
                name = application["metadata"]["name"] if application else ""
                if labels.get("sparkoperator.k8s.io/app-name") == name and (
                    labels.get("spark-role") == role and pod["status"].get("phase") == "Running"
                ):
                    return pod
            return None

        return until(found, self.described, within_s=within_s)

    def delete(self) -> None:
        """`kubectl delete`, which waits until it is gone."""
        kind = f"{plural(self.kind)}.tandem.dev"
        self.lake.target.kube("delete", kind, self.name, "-n", LAKE, "--timeout=120s")


def options(url: str) -> dict[str, str]:
    """`spec.storage.options` for the S3 server at that URL."""
    return {"endpoint": url, "region": "us-east-1", "allow_http": "true"}


def compaction(
    name: str, table: str, template: Mapping[str, Any] | None = None, **spec: Any
) -> Json:
    """A minor compaction of a table."""
    found: Json = {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": "TableCompaction",
        "metadata": {"name": name, "namespace": LAKE},
        "spec": {"tableRef": {"name": table}, "type": "Minor",
                 "minor": {"thresholds": [4, 3]}, **spec},
    }  # fmt: skip
    if template:
        found["spec"]["sparkTemplate"] = {"spec": dict(template)}
    return found
