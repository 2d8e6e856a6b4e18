"""The main job in a whole cluster: installed by Helm, run by the real Spark operator, on S3.

Rows change while a compaction runs, as in the first demo, and in the end two readers must find
what DuckDB computes serially.
"""

from __future__ import annotations

import data
import yaml

from cluster_processes import REPOSITORY
from e2e.figures import Figures
from e2e.flights import Flights, until_first_success
from e2e.kube_api import Json
from e2e.lake import ENDED, Lake
from e2e.steps import Steps
from e2e.target import Target

FLIGHTS = REPOSITORY / "examples" / "flights"
TWO_EXECUTORS = {"executor": {"instances": 2}}


def example(name: str) -> Json:
    """A file of examples/flights/."""
    found: Json = yaml.safe_load((FLIGHTS / f"{name}.yaml").read_text())
    return found


def test_from_helm_install_to_the_first_success(
    cluster: Target, lake: Lake, flights: Flights, figures: Figures
) -> None:
    lake.upload(flights.folder, "first")
    figures.run("first run", until_first_success(cluster, lake, "first", "tidy-first"))
    lake.nothing_is_left_behind()


def test_rows_change_while_executors_compact(
    cluster: Target, lake: Lake, flights: Flights, figures: Figures
) -> None:
    lake.upload(flights.folder, "flights")
    table = example("table")
    table["spec"] = lake.table("flights")["spec"]
    tidy_file = example("compaction")
    tidy_file["spec"]["sparkTemplate"] = {"spec": TWO_EXECUTORS}
    with Steps(lake) as steps:
        lake.apply(table)
        [tidy] = lake.apply(tidy_file)
        tidy.running("executor")
        statements = lake.apply(example("update"), example("delete"))
        changed_meanwhile = tidy.phase not in ENDED
        for each in (*statements, tidy):
            each.succeeded()
            steps.until(f"{each.name}: Succeeded")
    assert changed_meanwhile, "the compaction was over before the statements came"

    ours, theirs = lake.read_both("flights")
    assert data.differences(flights.answer, ours) == 0
    assert data.differences(flights.answer, theirs) == 0
    attempts = {each.name: each.read()["status"]["attempt"] for each in (*statements, tidy)}
    assert attempts == {"fifteen-minutes-late": 1, "cancelled": 1, "tidy": 1}
    ran = {role: len(pods) for role, pods in steps.pods.items()}
    assert ran["tidy executor"] == 2
    assert {ran["tidy driver"], ran["cancelled driver"], ran["fifteen-minutes-late driver"]} == {1}
    figures.fact(
        "compaction, update and delete at once",
        f"{max(steps.at[f'{name}: Succeeded'] for name in attempts):.0f} s,"
        f" at most {steps.most_pods['driver']} drivers and {steps.most_pods['executor']}"
        " executors at once",
    )
    lake.nothing_is_left_behind()
