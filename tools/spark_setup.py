"""Make Spark start fast, and download the tests' Spark parts. Idempotent; a no-op once done.

    python tools/spark_setup.py            the class-data archive of the product's jobs
    python tools/spark_setup.py --tests    also Delta's jars, the tests' archive, Spark's catalog
                                           for tables in Unity Catalog

All of it goes below `$TANDEM_CACHE` (default `~/.cache/tandem`) and can be deleted at any time.
An archive is made by running the common jobs (a rewrite, statements, ingests); then the JVM writes
the classes that it loaded. It halves the start of every later driver of the same JVM and class
path.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "operator"), str(ROOT / "tools")]

from tandem.errors import SparkMissing  # noqa: E402
from tandem.spark.runtime import session  # noqa: E402


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def product_archive() -> None:
    """The archive for `spark-submit` of our own applications."""
    target = session.product_archive(session.find_java())
    if target.is_file():
        return
    with _archive_in_the_making(target) as record:
        env = session.launch_environment()
        env["PYTHONPATH"] = os.pathsep.join(
            p for p in (str(ROOT / "operator"), env.get("PYTHONPATH", "")) if p
        )
        command = [str(session.spark_home() / "bin" / "spark-submit")]
        for key, value in session.build_conf(record_archive=record).items():
            command += ["--conf", f"{key}={value}"]
        _run([*command, str(ROOT / "tools" / "spark_warmup.py")], env)


def fetch_delta_jars() -> None:
    """Download Delta's jars by Spark's own resolver, in a session only for this."""
    from delta_session import DELTA_PACKAGE

    folder = session.cache_dir() / "jars"
    version = DELTA_PACKAGE.rsplit(":", 1)[1]
    if list(folder.glob(f"io.delta_delta-spark*-{version}.jar")):
        return
    say(f"Fetching {DELTA_PACKAGE} for the tests.")
    with tempfile.TemporaryDirectory(prefix="tandem-ivy-") as ivy:
        code = (
            "from pyspark import SparkContext, SparkConf\n"
            "SparkContext(conf=SparkConf().setMaster('local[1]').setAppName('fetch')"
            ".set('spark.ui.enabled', 'false')"
            f".set('spark.jars.packages', '{DELTA_PACKAGE}')"
            # All of these are in Spark's own distribution already, and large.
            ".set('spark.jars.excludes', 'org.apache.hadoop:hadoop-client-api,"
            "org.apache.hadoop:hadoop-client-runtime')"
            f".set('spark.jars.ivy', {ivy!r})).stop()"
        )
        _run([sys.executable, "-c", code], session.launch_environment())
        folder.mkdir(parents=True, exist_ok=True)
        # The jar that says "done" is moved last, so that an interrupted copy is noticed.
        jars = sorted(Path(ivy, "jars").glob("io.delta_*")) + sorted(
            Path(ivy, "jars").glob("io.unitycatalog_*")
        )
        jars.sort(key=lambda jar: jar.name.startswith("io.delta_delta-spark"))
        for jar in jars:
            part = folder / f"{jar.name}.part"
            shutil.copyfile(jar, part)
            part.replace(folder / jar.name)


def tests_archive() -> None:
    """The archive for the session that the tests share (Delta on the class path)."""
    from delta_session import delta_jars

    target = session.archive_path(session.find_java(), delta_jars())
    if target.is_file():
        return
    with _archive_in_the_making(target) as record:
        env = session.launch_environment()
        env["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
        _run([sys.executable, str(ROOT / "tools" / "spark_warmup.py"), "--tests", str(record)], env)


def unity_jar() -> None:
    """Spark's catalog for tables in Unity Catalog, compiled by the compiler that Spark comes with:
    a JDK is not needed."""
    from delta_session import delta_jars, unity_catalog_jar

    target = unity_catalog_jar()
    if target.is_file():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.stem}.{os.getpid()}.part.jar")
    path = os.pathsep.join([f"{session.spark_home()}/jars/*", *map(str, delta_jars())])
    compiler = [str(session.find_java()), "-cp", path, "scala.tools.nsc.Main", "-usejavacp"]
    source = ROOT / "tools" / "unity" / "UCSingleCatalog.scala"
    try:
        _run([*compiler, "-nowarn", "-d", str(part), str(source)], dict(os.environ))
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


class _archive_in_the_making:  # noqa: N801 - reads as a statement
    """A path to record at; moved to `target` if the block succeeds."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.part = target.with_name(f"{target.name}.{os.getpid()}.part")

    def __enter__(self) -> Path:
        self.target.parent.mkdir(parents=True, exist_ok=True)
        say("Making a class-data archive, which halves Spark's start (once).")
        self.started = time.monotonic()
        return self.part

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self.part.is_file():
            self.part.replace(self.target)
            # Archives of earlier warm-ups: 170 MB each, and never used again.
            for old in self.target.parent.glob(f"{self.target.stem.rpartition('-')[0]}-*.jsa"):
                if old != self.target:
                    old.unlink(missing_ok=True)
            say(f"Done in {time.monotonic() - self.started:.0f} s.")
        else:
            self.part.unlink(missing_ok=True)
            if kind is None:
                # Not fatal: Spark starts without it, only more slowly.
                say("The JVM wrote no archive; Spark will start more slowly.")


def _run(command: list[str], env: dict[str, str]) -> None:
    done = subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        say(done.stdout[-2000:] + done.stderr[-4000:])
        raise SystemExit(f"{Path(command[0]).name} ended with {done.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tests", action="store_true", help="also what the tests need")
    arguments = parser.parse_args()
    try:
        product_archive()
        if arguments.tests:
            fetch_delta_jars()
            tests_archive()
            unity_jar()
    except SparkMissing as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
