"""`charts/tandem/files/dashboard.json`: the Grafana dashboard, from the table below. Used by
`generate_docs.py`; a test checks every expression.

`$s` in an expression stands for the choice of operators, `$w` for the window of rates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

_CHOICE = 'job=~"$job",namespace=~"$namespace"'
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT = 24, 8


@dataclass(frozen=True, slots=True)
class Panel:
    """`lines` are pairs of an expression and the legend of its series."""

    title: str
    says: str
    lines: Sequence[tuple[str, str]]
    unit: str = "short"
    width: int = 8
    type: str = "timeseries"
    stacked: bool = False


def _quantile(share: float, family: str, by: str) -> str:
    return f"histogram_quantile({share}, sum by ({by}, le) (rate({family}_bucket{{$s}}[$w])))"


def _rate(family: str, by: str, more: str = "") -> str:
    return f"sum by ({by}) (rate({family}{{$s{more}}}[$w]))"


ROWS: Sequence[tuple[str, Sequence[Panel]]] = (
    (
        "Now",
        (
            Panel("Leader", "1 if an operator leads.", [("max(tandem_leader{$s})", "")], width=4,
                  type="stat"),
            Panel("Locks", "1 if etcd responds.", [("min(tandem_lock_store_up{$s})", "")], width=4,
                  type="stat"),
            Panel("Tables", "All tables, and tables that are not ready.",
                  [("sum(tandem_tables{$s})", "all"),
                   ('sum(tandem_tables{$s,ready="False"})', "not ready")], width=4, type="stat"),
            Panel("In progress", "Operations that have started and not ended.",
                  [('sum(tandem_operations{$s,phase=~"Planned|Locked|Running|Reconciling"})', "")],
                  width=4, type="stat"),
            Panel("Failed in the last hour", "Operations that failed permanently.",
                  [('sum(increase(tandem_operations_ended_total{$s,outcome="Failed"}[1h]))', "")],
                  width=4, type="stat"),
            Panel("Version", "Of the operators.",
                  [("count by (version) (tandem_build_info{$s})", "{{version}}")], width=4,
                  type="stat"),
            Panel("Operations by phase", "All that exist.",
                  [("sum by (phase) (tandem_operations{$s})", "{{phase}}")], width=12,
                  stacked=True),
            Panel("Reasons why operations cannot continue", "See docs/reasons.md.",
                  [("sum by (reason) (tandem_operations_hindered{$s})", "{{reason}}")], width=12,
                  stacked=True),
        ),
    ),
    (
        "Throughput",
        (
            Panel("Operations ended per hour", "By outcome.",
                  [(f"3600 * {_rate('tandem_operations_ended_total', 'kind, outcome')}",
                    "{{kind}} {{outcome}}")]),
            Panel("Failures per hour, by reason", "See docs/reasons.md.",
                  [("3600 * "
                    + _rate("tandem_operations_ended_total", "reason", ',outcome="Failed"')
                    + " > 0", "{{reason}}")]),
            Panel("Duration of operations", "Median and 90th percentile.",
                  [(_quantile(0.5, "tandem_operation_duration_seconds", "kind"), "{{kind}} median"),
                   (_quantile(0.9, "tandem_operation_duration_seconds", "kind"), "{{kind}} 90 %")],
                  "s"),
            Panel("Bytes added and removed", "By commits.",
                  [(_rate("tandem_added_bytes_total", "kind"), "{{kind}} added"),
                   (_rate("tandem_removed_bytes_total", "kind"), "{{kind}} removed")], "Bps"),
            Panel("Files added and removed", "By commits.",
                  [(_rate("tandem_files_added_total", "kind"), "{{kind}} added"),
                   (_rate("tandem_files_removed_total", "kind"), "{{kind}} removed")]),
            Panel("Time by step", "Seconds per second.",
                  [(f"topk(8, {_rate('tandem_step_duration_seconds_sum', 'step')})", "{{step}}")],
                  "s", stacked=True),
        ),
    ),
    (
        "Waiting and locks",
        (
            Panel("Longest without progress", "By phase.",
                  [("max by (kind, phase) (tandem_operation_longest_unchanged_seconds{$s})",
                    "{{kind}} {{phase}}")], "s"),
            Panel("Wait for locks", "Median and 90th percentile.",
                  [(_quantile(0.5, "tandem_lock_wait_seconds", "kind"), "{{kind}} median"),
                   (_quantile(0.9, "tandem_lock_wait_seconds", "kind"), "{{kind}} 90 %")], "s"),
            Panel("Child processes", "They control the tables; begun and lost per hour.",
                  [("max(tandem_child_processes{$s})", "processes"),
                   ("3600 * sum(rate(tandem_child_processes_started_total{$s}[$w]))", "started"),
                   ("3600 * sum(rate(tandem_child_processes_lost_total{$s}[$w]))", "lost")]),
        ),
    ),
    (
        "Jobs",
        (
            Panel("Slots", "Running jobs, and jobs that wait for a slot.",
                  [("max(tandem_jobs_running{$s})", "running"),
                   ("max(tandem_jobs_waiting{$s})", "waiting"),
                   ("max(tandem_jobs_limit{$s})", "limit")]),
            Panel("Jobs ended per hour", "By reason.",
                  [(f"3600 * {_rate('tandem_jobs_ended_total', 'reason')} > 0", "{{reason}}"),
                   ("3600 * sum(rate(tandem_jobs_started_total{$s}[$w]))", "started")]),
            Panel("Duration of jobs", "Median and 90th percentile.",
                  [(_quantile(0.5, "tandem_job_duration_seconds", "kind"), "{{kind}} median"),
                   (_quantile(0.9, "tandem_job_duration_seconds", "kind"), "{{kind}} 90 %")], "s"),
            Panel("Small jobs", "Those done in child processes; lost per hour with one.",
                  [("max(tandem_small_jobs{$s})", "jobs"),
                   ("3600 * sum(rate(tandem_small_jobs_lost_total{$s}[$w]))", "lost")], width=24),
        ),
    ),
    (
        "Reconciliation",
        (
            Panel("Commits per hour", "And races lost to other writers.",
                  [(f"3600 * {_rate('tandem_commits_total', 'kind')}", "{{kind}}"),
                   ("3600 * sum(rate(tandem_commit_races_lost_total{$s}[$w]))", "races lost")]),
            Panel("Rounds before a commit", "90th percentile, and the mean.",
                  [(_quantile(0.9, "tandem_commit_rounds", "kind"), "{{kind}} 90 %"),
                   (f"{_rate('tandem_commit_rounds_sum', 'kind')} / "
                    f"{_rate('tandem_commit_rounds_count', 'kind')}", "{{kind}} mean")]),
            Panel("Reconciled per second", "With commits of other writers.",
                  [("sum(rate(tandem_reconciled_commits_total{$s}[$w]))", "commits met"),
                   ("sum(rate(tandem_reconciled_deletes_total{$s}[$w]))", "deletes replayed"),
                   ("sum(rate(tandem_reconciled_rows_masked_total{$s}[$w]))", "rows masked"),
                   ("sum(rate(tandem_reconciled_rows_evaluated_total{$s}[$w]))", "rows evaluated"),
                   ("sum(rate(tandem_reconciled_bins_contended_total{$s}[$w]))", "bins contended"),
                   ("sum(rate(tandem_late_rows_kept_total{$s}[$w]))", "late rows kept")]),
            Panel("Conflicts and yields per day", "Operations and attempts that gave way.",
                  [("sum by (kind) (increase(tandem_operations_ended_total"
                    '{$s,reason="Conflict"}[1d])) > 0', "{{kind}} conflicts"),
                   ("sum by (kind) (increase(tandem_yields_total{$s}[1d])) > 0",
                    "{{kind}} yields")]),
        ),
    ),
    (
        "Tables",
        (
            Panel("All tables", "Files, small files, segments.",
                  [("max(tandem_tables_files{$s})", "files"),
                   ("max(tandem_tables_small_files{$s})", "small files"),
                   ("max(tandem_tables_segments{$s})", "segments")]),
            Panel("Size of all tables", "Live files.", [("max(tandem_tables_bytes{$s})", "bytes")],
                  "bytes"),
            Panel("Not ready, by reason", "See docs/reasons.md.",
                  [('sum by (reason) (tandem_tables{$s,ready="False"})', "{{reason}}")],
                  stacked=True),
            Panel("Small files", "The ten tables with the most.",
                  [("topk(10, max by (table_namespace, table) (tandem_table_small_files{$s}))",
                    "{{table_namespace}}/{{table}}")]),
            Panel("Deleted rows", "The ten tables with the most.",
                  [("topk(10, max by (table_namespace, table) (tandem_table_deleted_rows{$s}))",
                    "{{table_namespace}}/{{table}}")]),
            Panel("Unmerged for", "The ten tables whose logs have the oldest unmerged records.",
                  [("topk(10, time() - min by (table_namespace, table) "
                    "(tandem_table_log_oldest_unmerged_timestamp_seconds{$s}))",
                    "{{table_namespace}}/{{table}}"),
                   ("time() - min(tandem_tables_log_oldest_unmerged_timestamp_seconds{$s})",
                    "all tables")], "s"),
            Panel("Blocks of logs", "The ten tables with the most.",
                  [("topk(10, max by (table_namespace, table) (tandem_table_log_blocks{$s}))",
                    "{{table_namespace}}/{{table}}"),
                   ("max(tandem_tables_log_blocks{$s})", "all tables")]),
            Panel("Size of logs", "Live blocks of all tables.",
                  [("max(tandem_tables_log_bytes{$s})", "bytes")], "bytes"),
            Panel("Index servers", "By whether they answer, with the tables that they serve.",
                  [("sum by (ready) (tandem_index_servers{$s})", "ready: {{ready}}"),
                   ("max(tandem_index_servers_tables{$s})", "tables")]),
            Panel("Held by index servers", "Of all tables that they serve.",
                  [("max(tandem_index_servers_held_bytes{$s})", "bytes")], "bytes"),
            Panel("Since the last compaction", "The ten tables with the longest time.",
                  [("topk(10, time() - max by (table_namespace, table) "
                    "(tandem_table_last_compaction_timestamp_seconds{$s}))",
                    "{{table_namespace}}/{{table}}")], "s"),
            Panel("Automatic compactions on hold", "Tables, by reason.",
                  [("count by (hold) (tandem_table_automatic_compaction{$s})", "{{hold}}")],
                  width=12, stacked=True),
            Panel("Until the next compaction", "For compactions with a known time.",
                  [("min by (table_namespace, table) "
                    "(tandem_table_next_compaction_timestamp_seconds{$s}) - time()",
                    "{{table_namespace}}/{{table}}")], "s", width=12),
            Panel("Time chunks that are due", "For tables with `compaction.chunks`.",
                  [("max(tandem_tables_chunks_due{$s})", "all"),
                   ("max by (table_namespace, table) (tandem_table_chunks_due{$s})",
                    "{{table_namespace}}/{{table}}")], width=12),
        ),
    ),
    (
        "API server, etcd and stores",
        (
            Panel("Calls of the API server", "By code.",
                  [(_rate("tandem_api_requests_total", "code"), "{{code}}")], "reqps",
                  stacked=True),
            Panel("Latency of the API server", "99th percentile.",
                  [(_quantile(0.99, "tandem_api_request_duration_seconds", "verb"), "{{verb}}")],
                  "s"),
            Panel("Lateness of the event loop", "99th percentile.",
                  [(_quantile(0.99, "tandem_loop_lag_seconds", "pod"), "{{pod}}")], "s"),
            Panel("Calls of etcd", "By outcome.",
                  [(_rate("tandem_lock_requests_total", "outcome"), "{{outcome}}")], "reqps",
                  stacked=True),
            Panel("Latency of etcd", "99th percentile.",
                  [(_quantile(0.99, "tandem_lock_request_duration_seconds", "request"),
                    "{{request}}")], "s"),
            Panel("Failed steps per hour", "By reason; most are retried.",
                  [(f"3600 * {_rate('tandem_step_failures_total', 'reason')} > 0", "{{reason}}")]),
            Panel("CPU of the operators", "Cores.",
                  [("sum by (pod) (rate(process_cpu_seconds_total{$s}[$w]))", "{{pod}}")],
                  width=12),
            Panel("Memory of the operators", "Resident.",
                  [("sum by (pod) (process_resident_memory_bytes{$s})", "{{pod}}")], "bytes",
                  width=12),
        ),
    ),
)  # fmt: skip


def dashboard() -> str:
    """The file's text."""
    found = {
        "uid": "tandem",
        "title": "Tandem",
        "tags": ["tandem"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "timezone": "browser",
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": list(_variables())},
        "panels": list(_panels()),
    }
    return json.dumps(found, indent=1) + "\n"


def _variables() -> Iterator[Json]:
    yield {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    for name in ("namespace", "job"):
        more = ',namespace=~"$namespace"' if name == "job" else ""
        query = f"label_values(tandem_build_info{{{more.strip(',')}}}, {name})"
        yield {
            "name": name,
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": query, "refId": name},
            "definition": query,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
            "refresh": 2,
            "sort": 1,
        }


def _panels() -> Iterator[Json]:
    number, top = 1, 0
    for title, panels in ROWS:
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": top, "w": _WIDTH, "h": 1},
        }
        number, top, left, height = number + 1, top + 1, 0, 0
        for panel in panels:
            if left + panel.width > _WIDTH:
                top, left = top + height, 0
            height = 4 if panel.type == "stat" else _HEIGHT
            place = {"x": left, "y": top, "w": panel.width, "h": height}
            yield _panel(panel, number, place)
            number, left = number + 1, left + panel.width
        top += height


def _panel(panel: Panel, number: int, place: Json) -> Json:
    custom = {"fillOpacity": 20, "stacking": {"mode": "normal"}} if panel.stacked else {}
    return {
        "id": number,
        "type": panel.type,
        "title": panel.title,
        "description": panel.says,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": custom},
            "overrides": [],
        },
        "options": {"reduceOptions": {"calcs": ["lastNotNull"]}}
        if panel.type == "stat"
        else {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {
                "refId": chr(ord("A") + place_),
                "datasource": _SOURCE,
                "expr": expression.replace("$s", _CHOICE).replace("$w", "$__rate_interval"),
                "legendFormat": name or "__auto",
            }
            for place_, (expression, name) in enumerate(panel.lines)
        ],
    }
