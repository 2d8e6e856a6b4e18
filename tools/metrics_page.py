"""`docs/metrics.md`: every family of metrics with its labels and its bound, from
`tandem.kube.metrics.families`; and every alert with its runbook. Used by `generate_docs.py`."""

from __future__ import annotations

from pathlib import Path

import yaml

from tandem.kube.metrics import families as families
from tandem.kube.metrics.families import FAMILIES, Family, MetricLabel

ROOT = Path(__file__).resolve().parent.parent
ALERTS = ROOT / "charts" / "tandem" / "files" / "alerts.yaml"
SHOWN = 100

_INTRODUCTION = """\
`tandem operator` serves `/metrics`, `/healthz` and `/readyz` on one port (`--health`, 8080 by
default). The metrics have Prometheus' text format. Durations are in seconds, sizes in bytes. Every
operator has all families. A standby operator has no tables and no operations, so query the maximum
or the sum over operators.

**Counters start at zero when the operator starts**, which `rate` and `increase` handle. Gauges are
read at each scrape, so they are correct after a restart, with two exceptions. These start again at
a restart: the time since an operation's last progress, and the last compaction of a table whose
compactions are all deleted.

**The number of series is bounded**, whatever happens in the cluster. No label names an operation.
A label takes only known values; all others become `Other`. The {shown} tables with the most files
have separate series (`--table-metrics`; 0: none); sums are over all tables. With that default
there are at most **{bound}** series, and about {typical} in an operator after some use. Another
table replaces a shown one only if it has a quarter more files.

Prometheus' own label `namespace` is the operator's namespace, `table_namespace` is the table's.

The chart creates a ServiceMonitor (`serviceMonitor.enabled`), the alerts below
(`prometheusRule.enabled`) and a Grafana dashboard (`dashboard.enabled`). Without the Prometheus
operator, use `charts/tandem/files/alerts.yaml` as a plain rule file (replace `RUNBOOKS` by the
address of these pages), and import `charts/tandem/files/dashboard.json`.

A scrape takes about 10 ms of CPU time, 25 ms with ten thousand operations. Counting takes about
0.2 ms of the 36 ms that the operator spends on an operation; `tests/kube/test_metrics_bound.py`
limits it to 0.3 ms.
"""


def metrics(note: str) -> str:
    """The page."""
    bound = f"{families.bound(SHOWN):,}"
    text = "# Metrics and alerts\n\n" + note
    text += _INTRODUCTION.format(shown=SHOWN, bound=bound, typical="1,000")
    text += "\n## Families\n\n| name | type | labels | at most | meaning |\n|---|---|---|---|---|\n"
    for family in FAMILIES:
        most = "one a table" if family.per_table else f"{family.bound(SHOWN):,}"
        text += f"| `{family.name}` | {family.type} | {_labels(family)} | {most} | "
        text += f"{family.meaning} |\n"
    text += (
        "\nThe `process_*` families (CPU, memory, file descriptors, start) are those of every "
        "Prometheus client, of the\n"
        "operator's own process without its children.\n\n"
        "## Labels\n\n| label | of | values |\n|---|---|---|\n"
    )
    for label, names in _uses().items():
        text += f"| `{label.name}` | {', '.join(names)} | {_values(label)} |\n"
    text += "\n## Logs\n\n" + _LOGS + "\n## Alerts\n\n"
    text += "| alert | severity | summary | after |\n|---|---|---|---|\n"
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            name, says = rule["alert"], rule["annotations"]["summary"]
            says = says.replace("{{ $labels.", "<").replace(" }}", ">")
            severity, after = rule["labels"]["severity"], rule.get("for", "at once")
            text += f"| [{name}](runbooks/{name}.md) | {severity} | {_code(says)} | {after} |\n"
    return text


_LOGS = """\
The operator logs JSON lines on standard error (`--log-format console` for a terminal). A line about
an operation has `kind`, `namespace`, `name`, `table` and, once they are known, `operation` (its id,
as in its status, in the names of its jobs and below `_tandem/`) and `attempt`. kopf's own lines
name the object, too. This command

```sh
kubectl -n tandem-system logs -l app.kubernetes.io/component=operator --tail=-1 |
  jq -c 'select(.operation == "0123456789abcdef")'
```

shows the lines of one operation: `event` (each event), `adopted`, `job started`, `committed` with
`version`, `ended` with `phase`, `reason`, `message`, `version` and `seconds`, a warning if it
failed. The operator itself logs `starts` with its version and settings, `leads`, `leads no more`,
`resigned`, `stops`. No line contains a secret.
"""


def _labels(family: Family) -> str:
    names = ["table_namespace", "table"] if family.per_table else []
    names += [label.name for label in family.labels]
    names += ["le"] if family.type == "histogram" else []
    return ", ".join(f"`{name}`" for name in names)


def _uses() -> dict[MetricLabel, list[str]]:
    found: dict[MetricLabel, list[str]] = {}
    for family in FAMILIES:
        for label in family.labels:
            found.setdefault(label, []).append(f"`{family.name}`")
    return found


def _values(label: MetricLabel) -> str:
    reasons = {str(reason) for reason in families.REASON.values}
    if label.values >= reasons:
        more = sorted(label.values - reasons)
        also = "".join(f", `{value}`" for value in more)
        return f"a [reason](reasons.md), `Other`{also}"
    if label.name == "step":
        return f"the {len(label.values)} steps of an operation, such as `Plan`, `PutCommit`"
    if len(label.values) == 1:
        return next(iter(label.values))
    return ", ".join(f"`{value}`" for value in sorted(label.values))


def _code(text: str) -> str:
    return text.replace("<", "`<").replace(">", ">`")
