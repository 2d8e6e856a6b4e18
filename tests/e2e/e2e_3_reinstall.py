"""Removed and installed again; and what the cluster's path costs over `tandem run`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from e2e import install
from e2e.figures import Figures
from e2e.flights import Flights, until_first_success
from e2e.lake import Lake, compaction, options
from e2e.target import Target

AIM_S = 1.0
"""At most this much more than `tandem run`, beside the starts of pods and of Spark."""


def test_removed_and_installed_again(
    cluster: Target, lake: Lake, flights: Flights, figures: Figures
) -> None:
    """Definitions and resources stay; a second start is measured in the same steps."""
    before = {each["metadata"]["name"] for each in lake.target.kube.items(TABLES)}
    install.remove_tandem(cluster)
    assert {each["metadata"]["name"] for each in lake.target.kube.items(TABLES)} == before
    lake.upload(flights.folder, "second")
    figures.run("second run", until_first_success(cluster, lake, "second", "tidy-second"))
    lake.nothing_is_left_behind()


def test_the_overhead_of_the_cluster_over_tandem_run(
    lake: Lake, flights: Flights, figures: Figures, tmp_path: Path
) -> None:
    """The same compaction in both ways, on the same store: what passes before the job is asked
    for and after its commit is in the log. In between, both do the same, but for pods."""
    lake.upload(flights.folder, "by-cluster")
    lake.adopt("by-cluster")
    began = time.time()
    [tidy] = lake.apply(compaction("tidy-by-cluster", "by-cluster"))
    tidy.succeeded()
    in_cluster = outside(lake.objects("by-cluster"), began, time.time())

    lake.upload(flights.folder, "by-hand")
    with lake.store() as url:
        table = lake.table("by-hand")
        table["spec"]["storage"] = {"options": options(url)}
        file = tmp_path / "resources.yaml"
        file.write_text("\n---\n".join(map(json.dumps, (table, compaction("tidy", "by-hand")))))
        began = time.time()
        subprocess.run(
            [sys.executable, "-m", "tandem.cli.main", "run", "-f", str(file)],
            env={**os.environ, **lake.environ},
            check=True,
            capture_output=True,
        )
        ended = time.time()
    by_hand = outside(lake.objects("by-hand"), began, ended)
    figures.run("in the cluster", in_cluster)
    figures.run("tandem run", by_hand)
    cost = sum(in_cluster[part] - by_hand[part] for part in (BEFORE, AFTER))
    figures.fact(
        "the cluster's path over `tandem run`, without pods and Spark",
        f"{cost:+.1f} s (≤ {AIM_S:.0f})",
    )
    # The figure is printed beside its aim and gates nothing: what both did must be the same.
    rows = {read.num_rows for name in ("by-cluster", "by-hand") for read in lake.read_both(name)}
    assert len(rows) == 1


TABLES = f"/apis/tandem.dev/v1alpha1/namespaces/{install.LAKE}/laketables"
BEFORE, JOB, AFTER = "asked to job wanted", "job wanted to committed", "committed to reported"


def outside(objects: Mapping[str, datetime], began: float, ended: float) -> dict[str, float]:
    """Seconds before the job was wanted, until the commit, and after it; the store's clock is
    this machine's."""
    [wanted] = (at for path, at in objects.items() if path.endswith("/attempts/1/job.json"))
    committed = max(
        at for path, at in objects.items()
        if path.startswith("_delta_log/") and path.endswith(".json")
    )  # fmt: skip
    return {
        BEFORE: wanted.timestamp() - began,
        JOB: (committed - wanted).total_seconds(),
        AFTER: ended - committed.timestamp(),
    }
