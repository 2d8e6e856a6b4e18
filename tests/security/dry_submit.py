"""What arrives of a SparkApplication: through the Spark operator's own argument builder, and
Spark's own parsing of `spark-submit` arguments. Nothing is submitted."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
API_SERVER = ("127.0.0.1", "6443")


def argument_builder() -> Path:
    """The program of tools/spark-arguments; built first where it is missing."""
    script = ROOT / "tools" / "build-spark-arguments.sh"
    built = subprocess.run([str(script)], check=True, stdout=subprocess.PIPE, text=True)
    return Path(built.stdout.strip())


def operators_arguments(applications: Iterable[Json]) -> list[Json]:
    """For each application `{"arguments": […]}`, or `{"error": …}` where the Spark operator would
    not submit it."""
    text = "".join(json.dumps(application) + "\n" for application in applications)
    host, port = API_SERVER
    env = {**os.environ, "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    done = subprocess.run(
        [str(argument_builder())],
        input=text,
        env=env,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def sparks_parsing(
    spark: SparkSession, lists: Sequence[list[str]], folder: Path, prepare_each: int = 0
) -> list[Json]:
    """What `spark-submit` makes of each list of arguments.

    Args:
        prepare_each: of every so many lists also what it would start: `prepareSubmitEnvironment`.
    """
    asked, answered = folder / "arguments.jsonl", folder / "parsed.jsonl"
    with asked.open("w") as out:
        for index, arguments in enumerate(lists):
            prepare = bool(prepare_each) and index % prepare_each == 0
            out.write(json.dumps({"arguments": arguments, "prepare": prepare}) + "\n")
    _program(spark).apply(str(asked), str(answered))
    return [json.loads(line) for line in answered.read_text().splitlines()]


@lru_cache(maxsize=1)
def _program(spark: SparkSession) -> Any:
    """Once in a JVM: Py4J remembers a class by its name."""
    jvm: Any = spark.sparkContext._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook((Path(__file__).parent / "DrySubmit.java").read_text())
    return compiler.getClassLoader().loadClass("DrySubmit").newInstance()
