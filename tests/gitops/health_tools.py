"""The health that GitOps tools report for an object: their own code, called by `tools/gitops`.

health_tools = HealthTools.build()
health_tools.kstatus([body])[0].status == "InProgress"
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from cluster_processes import REPOSITORY

Json = dict[str, Any]
EXAMPLES = REPOSITORY / "examples" / "gitops"
HEALTH_LUA = EXAMPLES / "argocd" / "health.lua"
KUSTOMIZATIONS = EXAMPLES / "flux" / "kustomizations.yaml"


@dataclass(frozen=True)
class Verdict:
    """`status` in the words of the tool; `error` if it could not evaluate the object."""

    status: str
    message: str = ""
    error: str = ""


@dataclass(frozen=True)
class HealthTools:
    """All three tools. Each call starts the program once, however many objects it is given."""

    program: Path

    @classmethod
    def build(cls) -> HealthTools:
        """Built where it is missing."""
        script = str(REPOSITORY / "tools" / "build-gitops.sh")
        done = subprocess.run([script], stdout=subprocess.PIPE, check=True, text=True)
        return cls(Path(done.stdout.strip()))

    def ask(self, requests: Iterable[Mapping[str, Any]]) -> list[Verdict]:
        """Raises if the program does not answer each."""
        lines = [json.dumps(request) for request in requests]
        done = subprocess.run(
            [str(self.program)],
            input="".join(f"{line}\n" for line in lines),
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        answers = [Verdict(**json.loads(line)) for line in done.stdout.splitlines()]
        assert len(answers) == len(lines)
        return answers

    def kstatus(self, bodies: Iterable[Json]) -> list[Verdict]:
        """The answers of `kstatus`, which Flux uses with nothing but `wait: true`."""
        return self.ask({"engine": "kstatus", "object": body} for body in bodies)

    def argo(self, bodies: Iterable[Json], script: str | None = None) -> list[Verdict]:
        """The answers of Argo CD with our health.lua, or with another script ("" for none)."""
        text = HEALTH_LUA.read_text() if script is None else script
        return self.ask({"engine": "argo", "object": body, "script": text} for body in bodies)

    def flux(self, bodies: Iterable[Json]) -> list[Verdict]:
        """The answers of Flux with the expressions of our example."""
        return self.ask(
            {"engine": "flux", "object": body, "expressions": self.expressions[body["kind"]]}
            for body in bodies
        )

    def drift(self, pairs: Iterable[tuple[Json, Json]]) -> list[Verdict]:
        """Whether Argo CD takes (live object, manifest in Git) for the same."""
        return self.ask(
            {"engine": "argo-diff", "object": live, "manifest": manifest}
            for live, manifest in pairs
        )

    @cached_property
    def expressions(self) -> dict[str, Json]:
        """The example's `healthCheckExprs` by kind."""
        (lake,) = (
            item
            for item in yaml.safe_load_all(KUSTOMIZATIONS.read_text())
            if "healthCheckExprs" in item["spec"]
        )
        return {item["kind"]: item for item in lake["spec"]["healthCheckExprs"]}
