"""Alerts and dashboard: real promtool fires each alert when it should and leaves it silent when
not; they ask for no metric that the operator does not expose, and each alert has its page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

import dashboard
from chart.chart_values import EXTERNAL
from support.cluster.helm import of_kind, template
from support.cluster.promtool import promtool
from tandem.kube.metrics.families import FAMILIES
from tandem.spec import KINDS
from tandem.spec.common import plural

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "charts" / "tandem" / "files"
RUNBOOKS = ROOT / "docs" / "runbooks"
RULES = {
    rule["alert"]: rule
    for group in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
}
TARGET = {"job": "tandem", "namespace": "tandem-system"}
STANDARD = {"process_cpu_seconds_total", "process_resident_memory_bytes"}


@dataclass(frozen=True)
class Case:
    """`fires`: its labels beside those of the target and its severity; None: it is silent."""

    alert: str
    at: str
    fires: dict[str, str] | None
    series: dict[str, str]
    target: bool


CASES = tuple(
    Case(
        alert=each["alert"],
        at=each["at"],
        fires=each["fires"] if isinstance(each["fires"], dict) else None,
        series=each["series"],
        target=each.get("target", True),
    )
    for each in yaml.safe_load((Path(__file__).parent / "alert_cases.yaml").read_text())
)


def check(folder: Path, expressions: list[str]) -> None:
    """Whether Prometheus understands them."""
    rules = [{"record": f"r:{n}", "expr": each} for n, each in enumerate(expressions)]
    file = folder / "expressions.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
    promtool("check", "rules", "--lint=none", file)


def selector(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def with_target(series: str) -> str:
    """A series as it is after a scrape."""
    name, _, labels = series.rstrip("}").partition("{")
    own = selector(TARGET).strip("{}")
    return f"{name}{{{labels},{own}}}" if labels else f"{name}{{{own}}}"


def unit_test(one: Case) -> dict[str, Any]:
    samples = []
    if one.fires is not None:
        labels = {
            "alertname": one.alert,
            "alertstate": "firing",
            "severity": RULES[one.alert]["labels"]["severity"],
            **(TARGET if one.target else {}),
            **one.fires,
        }
        samples = [{"labels": f"ALERTS{selector(labels)}", "value": 1}]
    return {
        "name": f"{one.alert} at {one.at}: {one.fires}",
        "interval": "1m",
        "input_series": [{"series": with_target(s), "values": v} for s, v in one.series.items()],
        "promql_expr_test": [
            {
                "expr": f'ALERTS{{alertname="{one.alert}",alertstate="firing"}}',
                "eval_time": one.at,
                "exp_samples": samples,
            }
        ],
    }


def test_alerts_are_rules_that_prometheus_takes() -> None:
    promtool("check", "rules", FILES / "alerts.yaml")


@pytest.mark.matrix
@pytest.mark.parametrize(("unit", "interval"), [("m", "1m"), ("h", "10m")])
def test_every_alert_fires_when_it_should_and_only_then(
    tmp_path: Path, unit: str, interval: str
) -> None:
    """Those that take hours are looked at less often, which saves seconds."""
    tests = {
        "rule_files": [str(FILES / "alerts.yaml")],
        "evaluation_interval": interval,
        "tests": [unit_test(one) for one in CASES if one.at.endswith(unit)],
    }
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump(tests, sort_keys=False))
    promtool("test", "rules", file)


def test_the_templates_of_an_alert_are_filled_in(tmp_path: Path) -> None:
    annotations = {
        "summary": "A TableUpdate makes no progress",
        "description": "A TableUpdate in phase Running has shown no progress for 38m 20s. It holds "
        "its locks meanwhile, so others may wait for it.",
        "runbook_url": "RUNBOOKS/TandemOperationStuck.md",
    }
    labels = {"kind": "TableUpdate", "phase": "Running", "severity": "warning"}
    series = 'tandem_operation_longest_unchanged_seconds{kind="TableUpdate",phase="Running"}'
    tests = {
        "rule_files": [str(FILES / "alerts.yaml")],
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": with_target(series), "values": "1700+60x30"}],
                "alert_rule_test": [
                    {
                        "eval_time": "10m",
                        "alertname": "TandemOperationStuck",
                        "exp_alerts": [
                            {"exp_labels": {**labels, **TARGET}, "exp_annotations": annotations}
                        ],
                    }
                ],
            }
        ],
    }
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump(tests))
    promtool("test", "rules", file)


def test_every_alert_is_tried_both_ways() -> None:
    assert {one.alert for one in CASES if one.fires is not None} == RULES.keys()
    assert {one.alert for one in CASES if one.fires is None} == RULES.keys()
    assert {one.at[-1] for one in CASES} == {"m", "h"}


@pytest.mark.parametrize("alert", RULES)
def test_every_alert_has_a_runbook_page(alert: str) -> None:
    rule = RULES[alert]
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"RUNBOOKS/{alert}.md"
    assert asked(rule["expr"]) <= exposed()
    page = (RUNBOOKS / f"{alert}.md").read_text()
    assert re.findall(r"^#+ .*", page, re.MULTILINE) == [
        f"# {alert}",
        *("## Meaning", "## Impact", "## Diagnosis", "## Mitigation"),
    ]
    assert "```sh\nkubectl " in page


def test_the_commands_of_the_pages_are_there() -> None:
    from tandem.cli.kubectl.main import app

    ours = {command.callback.__name__ for command in app.registered_commands if command.callback}
    names = {"lake", "pods", "events", "secrets", "secret", "deployments", "sparkapplications"}
    names |= {"servicemonitors", "networkpolicies", "crds"}
    for kind, model in KINDS.items():
        names |= {kind.lower(), plural(kind), model.short_name}
    for page in RUNBOOKS.iterdir():
        text = page.read_text()
        assert set(re.findall(r"kubectl tandem ([a-z]+)", text)) <= ours, page
        for found in re.findall(r"kubectl (?:-n \S+ )?(?:get|describe) ([a-z,]+)", text):
            assert set(found.split(",")) <= names, (page, found)


def test_the_settings_of_the_pages_are_there() -> None:
    values = yaml.safe_load((ROOT / "charts" / "tandem" / "values.yaml").read_text())
    fields = {path for model in KINDS.values() for path in paths(spec_of(model))}
    fields |= set(fields_below(values))
    for page in RUNBOOKS.iterdir():
        for found in re.findall(r"`([a-z]\w+(?:\.\w+)+)`", page.read_text()):
            assert {found, found.removeprefix("spec.")} & fields, (page.name, found)


def fields_below(values: object, before: str = "") -> Iterator[str]:
    """`image.tag` and so on, of values of the chart."""
    if isinstance(values, dict):
        for name, inner in values.items():
            yield f"{before}{name}"
            yield from fields_below(inner, f"{before}{name}.")


def spec_of(model: Any) -> Any:
    return model.model_fields["spec"].annotation


def paths(model: Any, before: str = "") -> Iterator[str]:
    """Likewise, of a resource's spec."""
    for name, field in model.model_fields.items():
        path = f"{before}{field.alias or name}"
        yield path
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from paths(inner, f"{path}.")


def test_the_chart_says_where_the_pages_are() -> None:
    values = {"prometheusRule": {"enabled": True, "runbookUrl": "https://pages.example/x"}}
    (rule,) = of_kind(template({**EXTERNAL, **values}), "PrometheusRule")
    rules = [each for group in rule["spec"]["groups"] for each in group["rules"]]
    assert [each["annotations"]["runbook_url"] for each in rules] == [
        f"https://pages.example/x/{alert}.md" for alert in RULES
    ]


def test_every_page_is_of_an_alert() -> None:
    assert {page.stem for page in RUNBOOKS.iterdir()} == RULES.keys()


def test_the_dashboard_is_up_to_date_and_uses_existing_metrics(tmp_path: Path) -> None:
    text = (FILES / "dashboard.json").read_text()
    assert text == dashboard.dashboard(), "run `make docs`"
    panels = [panel for panel in json.loads(text)["panels"] if panel["type"] != "row"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    for expression in expressions:
        assert asked(expression), expression
        assert asked(expression) <= exposed(), expression
    check(tmp_path, [each.replace("$__rate_interval", "5m") for each in expressions])
    places = [tuple(panel["gridPos"].values()) for panel in panels]
    assert len(set(places)) == len(places)
    assert all(x + width <= 24 for x, _, width, _ in places)


def test_every_metric_is_on_the_dashboard_in_an_alert_or_exempt() -> None:
    used = set[str]().union(
        *(asked(rule["expr"]) for rule in RULES.values()), asked(dashboard.dashboard())
    )
    unused = {family.name for family in FAMILIES} - {_family(name) for name in used}
    # To look things up with.
    assert unused == {
        "tandem_operations_adopted_total",
        *(f"tandem_table_{name}" for name in ("ready", "version", "segments", "files", "bytes")),
        *("tandem_tables_deleted_rows", "tandem_tables_shown"),
        *("tandem_cleaned_files_total", "tandem_cleaned_bytes_total"),
    }


def asked(expression: str) -> set[str]:
    """The metrics in an expression."""
    return set(re.findall(r"\b(?:tandem|process)_[a-z_]+\b(?=[{\[)\s]|$)", expression))


def exposed() -> set[str]:
    """The names of all samples that there are: tests/kube/test_metrics_served.py compares the
    families with what an operator serves."""
    found = set(STANDARD)
    for family in FAMILIES:
        endings = ("_bucket", "_sum", "_count") if family.type == "histogram" else ("",)
        found |= {family.name + ending for ending in endings}
    return found


def _family(name: str) -> str:
    return re.sub(r"_(bucket|sum|count)$", "", name)
