"""Steps in the cluster and their times, as polling a few times a second sees them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from e2e.install import LAKE, OPERATOR, SYSTEM
from e2e.kube_api import POLL_S, condition, until
from e2e.lake import API, Lake
from tandem.spec.common import plural


@dataclass
class Steps(AbstractContextManager["Steps"]):
    """Looks from `with` on. `at` has the first time that each step was seen, in seconds since."""

    lake: Lake
    at: dict[str, float] = field(default_factory=dict)
    most_pods: dict[str, int] = field(default_factory=dict)
    """The most running pods at once, by role."""
    pods: dict[str, set[str]] = field(default_factory=dict)
    """Names of pods that have run, by the operation's name and the role: `tidy driver`."""

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="steps")
        self._failed: Exception | None = None

    def __enter__(self) -> Steps:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._check()

    def mark(self, step: str) -> None:
        """It happens now."""
        self.at.setdefault(step, time.monotonic() - self._began)

    def until(self, step: str) -> None:
        """Wait until it was seen."""

        def seen() -> bool:
            self._check()
            return step in self.at

        until(seen, lambda: f"{step!r} was not seen: {self.at}")

    def _check(self) -> None:
        if self._failed is not None:
            raise RuntimeError("polling has stopped") from self._failed

    def took(self, start: str, end: str) -> float:
        return self.at[end] - self.at[start]

    def _look(self) -> None:
        try:
            while not self._over.wait(POLL_S):
                self._once()
        except (OSError, KeyError, ValueError) as error:
            self._failed = error  # raised by the block's end

    def _once(self) -> None:
        kube = self.lake.target.kube
        for pod in kube.pods(SYSTEM, OPERATOR):
            self.mark("operator: pod created")
            if condition(pod, "Ready").get("status") == "True":
                self.mark("operator: ready")
        names = {}
        for kind in ("TableCompaction", "TableUpdate"):
            for each in kube.items(f"{API}/{plural(kind)}"):
                name, status = each["metadata"]["name"], each.get("status", {})
                names[each["metadata"]["uid"]] = name
                if status.get("phase"):
                    self.mark(f"{name}: {status['phase']}")
        for table in kube.items(f"{API}/laketables"):
            if condition(table, "Ready").get("status") == "True":
                self.mark(f"{table['metadata']['name']}: table ready")
        owners = {}
        for each in self.lake.applications():
            owner = names.get(each["metadata"]["ownerReferences"][0]["uid"], "?")
            owners[each["metadata"]["name"]] = owner
            self.mark(f"{owner}: application created")
            state = each.get("status", {}).get("applicationState", {}).get("state")
            if state:
                self.mark(f"{owner}: application {state}")
        self._pods(kube.pods(LAKE), owners)

    def _pods(self, pods: list[dict[str, Any]], owners: Mapping[str, str]) -> None:
        running: dict[str, int] = {}
        for pod in pods:
            labels = pod["metadata"].get("labels", {})
            role = labels.get("spark-role", "other")
            owner = owners.get(labels.get("sparkoperator.k8s.io/app-name", ""), "?")
            self.mark(f"{owner}: {role} created")
            phase = pod["status"].get("phase")
            if phase == "Running":
                running[role] = running.get(role, 0) + 1
                self.pods.setdefault(f"{owner} {role}", set()).add(pod["metadata"]["name"])
                self.mark(f"{owner}: {role} running")
            elif phase in {"Succeeded", "Failed"}:
                self.mark(f"{owner}: {role} ended")
        for role, count in running.items():
            self.most_pods[role] = max(self.most_pods.get(role, 0), count)


STEPS = (
    ("helm install", "install", "installed"),
    ("operator ready", "installed", "operator: ready"),
    ("table adopted", "table applied", "{table}: table ready"),
    ("planned, SparkApplication created", "applied", "{name}: application created"),
    ("Spark operator submits: driver's pod created", "{name}: application created",
     "{name}: driver created"),
    ("driver's pod runs", "{name}: driver created", "{name}: driver running"),
    ("Spark starts, job runs, commit", "{name}: driver running", "{name}: Succeeded"),
    ("helm install to Succeeded", "install", "{name}: Succeeded"),
)  # fmt: skip
"""The steps in which a first or second run is measured: step, start, end."""


def durations(steps: Steps, table: str, name: str) -> dict[str, float]:
    """How long each of `STEPS` took, in seconds."""
    return {
        title: steps.took(start.format(name=name), end.format(table=table, name=name))
        for title, start, end in STEPS
    }
