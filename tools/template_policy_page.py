"""`docs/template-policy.md`: what a `sparkTemplate` may set, from the policy's own lists."""

from __future__ import annotations

from tandem.spark.application.allowed_settings import FIELDS, REFUSED, SETTINGS
from tandem.spark.application.policy import OPTION, VALUE
from tandem.spark.application.template import OURS
from tandem.spark.runtime.session import session_conf

_CONF = "spec.sparkConf.spark."
_RESERVED = {
    "what the object is, and whose": ("apiVersion", "kind", "status", "metadata."),
    "its pods and its Service are found by these labels": (
        "spec.driver.labels.",
        "spec.driver.template.metadata.labels.",
        "spec.executor.labels.",
        "spec.executor.template.metadata.labels.",
        f"{_CONF}kubernetes.driver.label.",
        f"{_CONF}kubernetes.executor.label.",
    ),
    "which job it is": (
        "spec.type",
        "spec.mode",
        "spec.mainApplicationFile",
        "spec.mainClass",
        "spec.arguments",
    ),
    "a second run of an attempt would be a second driver; suspend the operation instead": (
        "spec.restartPolicy",
        "spec.failureRetries",
        "spec.retryInterval",
        "spec.suspend",
    ),
    "where the driver is, and whether there are executors": (
        "spec.driver.podName",
        "spec.driver.kubernetesMaster",
        f"{_CONF}master",
        f"{_CONF}submit.deployMode",
        f"{_CONF}remote",
        f"{_CONF}api.mode",
        f"{_CONF}kubernetes.namespace",
        f"{_CONF}kubernetes.driver.master",
        f"{_CONF}kubernetes.driver.pod.name",
    ),
    "the Spark operator's own; use `driver.template`, `executor.template`": (
        f"{_CONF}kubernetes.driver.podTemplate",
        f"{_CONF}kubernetes.executor.podTemplate",
    ),
}
"""Why → the beginnings of the reserved paths."""
_WHERE = {"a container": "`containers`, `initContainers` and `sidecars`"}


def page(note: str) -> str:
    """The page; `note` says where it comes from."""
    text = (
        "# What a template may set\n\n"
        + note
        + "Under `--template-policy restricted`, the default, `spec.sparkTemplate` of a resource "
        "may set only the settings and\nfields of this page. A refusal "
        "(`InvalidSpec`) names the path, the value found and the values\nallowed. The list does "
        "not apply to the [operator's own template](spark-applications.md).\n\n"
        "## Texts\n\n"
        "These rules also apply under `--template-policy any`, and to the operator's own template: "
        "a text that breaks one\nwould change its meaning on the way to Spark.\n\n"
        "| what | rule |\n|---|---|\n"
        "| a key of `sparkConf` or `hadoopConf` | one line of letters, digits, `.`, `_` and `-`; "
        "in names of labels, annotations and node selectors also one `/` |\n"
        "| a key of labels, annotations or `nodeSelector` | the same, with at most one `/` |\n"
        "| a value that becomes an argument of `spark-submit` | no control characters: no line "
        "break, no tab. In YAML `>-` folds lines without one at the end |\n"
        "| an item of `deps` and of `imagePullSecrets` | no commas, no blanks |\n"
        "| a name of a volume, a secret or a variable | the characters of such names |\n"
        "| Java options | no `-Dspark.…`: put settings of Spark into `sparkConf` |\n\n"
        "`restricted` has two more rules:\n\n"
        "| what | rule |\n|---|---|\n"
        "| an item of `deps` | `local:///PATH`, a file of the image |\n"
        "| a value that becomes an argument of `spark-submit` | no `${`: Spark replaces "
        "`${env:NAME}` by a variable of the Spark operator's pod |\n\n"
        "## Settings\n\n"
        "For `spec.sparkConf`. Keys of `spec.hadoopConf` count as `spark.hadoop.…`, and none of "
        "these is allowed. A `*` at the end matches\nany rest.\n"
    )
    for purpose, names in SETTINGS.items():
        text += f"\n**{purpose[0].upper()}{purpose[1:]}**: {_list(names)}.\n"
    text += (
        "\n## Fields\n\n"
        "A `.*` at the end matches all fields below. Some fields are allowed by name and checked "
        "by value: volumes, security contexts,\nservice accounts, ports and probes must meet the "
        "Pod Security Standard `restricted` and use the job's account.\n\n"
        "| below | fields |\n|---|---|\n"
    )
    for places, names in FIELDS.items():
        below = _WHERE.get(places) or ", ".join(f"`{place}`" for place in places.split(", "))
        text += f"| {below} | {_list(names)} |\n"
    text += "\nNot allowed, among others:\n\n| field | why |\n|---|---|\n"
    for path, why in REFUSED.items():
        text += f"| `{path}` | {why} |\n"
    return text + (
        "\n## Reserved\n\n"
        "No policy lets a template set these paths; `InvalidSpec` names the path. A statement "
        "must mean one thing, so the\n[settings of the session]"
        "(statements.md#settings-of-the-session) are reserved, too. The check of settings ignores "
        "case.\n\n"
        f"| reserved | why |\n|---|---|\n{_reserved()}"
        "\n## Allow more\n\n"
        f"`tandem operator {OPTION} PATTERN`, repeatable; in the chart `{VALUE}`. A pattern is the "
        "name of a setting\n(`spark.…`) or the path of a field (`spec.…`, `metadata.…`, with all "
        "fields below it). `*` matches one part of the path, at the end any rest.\n\n"
        "```sh\n"
        "tandem operator --template-allow spark.extraListeners --template-allow "
        "'spark.sql.catalog.*' …\n"
        f"helm upgrade … --set '{VALUE}={{spark.extraListeners,spec.batchScheduler}}'\n"
        "```\n\n"
        "All users who may create operations can use what you allow. A setting that "
        "`spark-submit` itself reads (`spark.jars*`,\n`spark.files`, `spark.hadoop.*`, "
        "`spark.kubernetes.authenticate.*`, `spark.kubernetes.file.upload.path`) acts in the Spark "
        "operator's\npod, with its account and its network. For settings that all jobs need, "
        "prefer the operator's own template\n(`--spark-template`, `jobs.sparkTemplate`).\n"
    )


def _reserved() -> str:
    """The rows of reserved paths, grouped by their reason."""
    pinned = {f"spec.sparkConf.{key}" for key in session_conf()}
    left = [path for path in OURS if path not in pinned]
    rows = ""
    for why, beginnings in _RESERVED.items():
        found = tuple(path for path in left if path.startswith(beginnings))
        left = [path for path in left if path not in found]
        rows += f"| {_list(found)} | {why} |\n"
    assert not left, f"no reason for {left}"
    return rows


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)
