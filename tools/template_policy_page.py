"""`docs/template-policy.md`: what a `sparkTemplate` may set, from the policy's own lists."""

from __future__ import annotations

from tandem.spark.application.allowed_settings import FIELDS, OPTION, REFUSED, SETTINGS, VALUE

_WHERE = {"a container": "`containers`, `initContainers` and `sidecars`"}


def page(note: str) -> str:
    """The page; `note` says where it comes from."""
    text = (
        "# What a template may set\n\n"
        + note
        + "Under `--template-policy restricted`, the default, `spec.sparkTemplate` of a resource "
        "may set the settings and\nfields of this page, and nothing else. A refusal "
        "(`InvalidSpec`) names the path, what was found there and what is\nallowed. The "
        "[operator's own template](spark-applications.md) is not held to it.\n\n"
        "## Texts\n\n"
        "These rules hold under `--template-policy any`, too, and for the operator's own template: "
        "a text that breaks one\nreaches Spark as something else.\n\n"
        "| what | rule |\n|---|---|\n"
        "| a key of `sparkConf` or `hadoopConf` | one line of letters, digits, `.`, `_` and `-`; "
        "in names of labels, annotations and node selectors also one `/` |\n"
        "| a key of labels, annotations or `nodeSelector` | the same, with at most one `/` |\n"
        "| a value that becomes an argument of `spark-submit` | no control characters: no line "
        "break, no tab. In YAML `>-` folds lines without one at the end |\n"
        "| an item of `deps` and of `imagePullSecrets` | no commas, no blanks |\n"
        "| a name of a volume, a secret or a variable | the characters of such names |\n"
        "| Java options | no `-Dspark.…`: settings of Spark belong into `sparkConf` |\n\n"
        "`restricted` has two more:\n\n"
        "| what | rule |\n|---|---|\n"
        "| an item of `deps` | `local:///PATH`, a file of the image |\n"
        "| a value that becomes an argument of `spark-submit` | no `${`: Spark replaces "
        "`${env:NAME}` by a variable of the Spark operator's pod |\n\n"
        "## Settings\n\n"
        "For `spec.sparkConf`; keys of `spec.hadoopConf` count as `spark.hadoop.…`, of which there "
        "is none. A `*` at the end stands for any\nrest.\n"
    )
    for purpose, names in SETTINGS.items():
        text += f"\n**{purpose[0].upper()}{purpose[1:]}**: {_list(names)}.\n"
    text += (
        "\n## Fields\n\n"
        "A `.*` at the end stands for all below. Some are allowed by name and judged by value: "
        "volumes, security contexts,\nservice accounts, ports and probes must keep to the Pod "
        "Security Standard `restricted` and to the job's account.\n\n"
        "| below | fields |\n|---|---|\n"
    )
    for places, names in FIELDS.items():
        below = _WHERE.get(places) or ", ".join(f"`{place}`" for place in places.split(", "))
        text += f"| {below} | {_list(names)} |\n"
    text += "\nNot allowed, among others:\n\n| field | why |\n|---|---|\n"
    for path, why in REFUSED.items():
        text += f"| `{path}` | {why} |\n"
    return text + (
        "\n## Allow more\n\n"
        f"`tandem operator {OPTION} PATTERN`, repeatable; in the chart `{VALUE}`. A pattern is the "
        "name of a setting\n(`spark.…`) or the path of a field (`spec.…`, `metadata.…`, with all "
        "below it); `*` is one part of the path, at the end any rest.\n\n"
        "```sh\n"
        "tandem operator --template-allow spark.extraListeners --template-allow "
        "'spark.sql.catalog.*' …\n"
        f"helm upgrade … --set '{VALUE}={{spark.extraListeners,spec.batchScheduler}}'\n"
        "```\n\n"
        "What you allow is in the hands of all who may create operations. A setting that "
        "`spark-submit` itself reads (`spark.jars*`,\n`spark.files`, `spark.hadoop.*`, "
        "`spark.kubernetes.authenticate.*`, `spark.kubernetes.file.upload.path`) acts in the Spark "
        "operator's\npod, with its account and its network. Prefer the operator's own template "
        "(`--spark-template`, `jobs.sparkTemplate`) for what all\njobs need.\n\n"
        "What Tandem sets itself cannot be allowed: [SparkApplications](spark-applications.md).\n"
    )


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)
