"""How Spark is started: Java, JVM flags, pinned SQL settings.

Spark's start dominates small operations, so it is reduced from 13 s to about 4 s: no web UI, the
serial collector, only the first compiler tier for short jobs, and a class-data archive (AppCDS)
that `tools/spark_setup.py` creates once per JVM, PySpark version and class path.

Nothing here imports PySpark before Java is found: the error on a machine without Java is one
sentence, not a stack trace of the gateway. This module must not depend on any job.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version as package_version
from pathlib import Path
from typing import TYPE_CHECKING, Final

import tandem
from tandem.errors import InvalidSpec, SparkMissing

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
import signal
import threading

MINIMUM_JAVA = 17
"""PySpark 4 runs on Java 17 and later."""

WORKER_BYTES: Final = 1 << 30
"""Memory of a Python worker: decoded batches of several inputs, and the row groups it writes."""
JOB_CONF: Final = {
    "spark.log.level": "WARN",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # No limit: the answers of all tasks are the result of a job. The ranks of sorted rows alone
    # are 4 bytes a row, and Spark's limit of 1 GiB fails a job of 268 million rows after its work.
    "spark.driver.maxResultSize": "0",
}
"""Settings of all jobs, here and in a cluster. A template may set others there."""
_SQL_CONF: Final = {
    # Division by zero, overflow and bad casts raise; string = int casts the string.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    # `date` and `user` are good column names; we quote every name anyway.
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.caseSensitive": "false",
    # Timestamps without a zone, dates of instants: one result wherever the job runs.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.datetime.java8API.enabled": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    # How literals are parsed; see `tandem.statements.tree`.
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.legacy.consecutiveStringLiterals.enabled": "false",
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "false",
    "spark.sql.legacy.literal.pickMinimumPrecision": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    # Otherwise `${env:HOME}` inside a string literal is replaced before parsing.
    "spark.sql.variable.substitute": "false",
    # Defence in depth: text.`/etc/passwd` is not a table.
    "spark.sql.runSQLOnFiles": "false",
}
"""The dialect of statements, Spark 4.2 SQL in ANSI mode: under other settings a text may have
another result, so every session has these unchanged, and no setting of a user overrides them."""
_LEAST_CORES: Final = 2
_LEAST_HEAP: Final = 1 << 30
_MOST_HEAP: Final = 8 << 30
_LIMITS: Final = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Of a container: control groups of version 2 and 1. In its own namespace, it is the root."""

PACKAGE = Path(tandem.__file__).resolve().parent
"""The folder of the package, in a checkout or an installation."""


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """`$TANDEM_CACHE`, else `~/.cache/tandem`. Its content can be recreated."""
    env = os.environ if environ is None else environ
    configured = env.get("TANDEM_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "tandem"


def find_java(environ: Mapping[str, str] | None = None) -> Path:
    """The `java` that Spark's scripts choose: that of `JAVA_HOME`, else the one on `PATH`.

    Raises:
        SparkMissing: there is none, or it is older than `MINIMUM_JAVA`.
    """
    env = os.environ if environ is None else environ
    home = env.get("JAVA_HOME")
    candidate = str(Path(home) / "bin" / "java") if home else "java"
    found = shutil.which(candidate, path=env.get("PATH"))
    if found is None:
        raise _missing("no Java was found", candidate)
    java = Path(found).resolve()
    release = java_version(java)
    major = int(re.split(r"[.+_-]", release)[0])
    if major < MINIMUM_JAVA:
        raise _missing(f"Java {release} is too old", str(java))
    return java


def java_version(java: Path) -> str:
    """Version text such as `17.0.15`; read from the JDK's `release` file if there is one, because
    starting the JVM takes a tenth of a second."""
    release = java.parent.parent / "release"
    if release.is_file():
        match = re.search(r'^JAVA_VERSION="([^"]+)"', release.read_text(), re.MULTILINE)
        if match:
            return match[1]
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise _missing(f"{java} does not run", str(error)) from error
    match = re.search(r'version "([^"]+)"', answer.stderr)
    if match is None:
        raise _missing(f"{java} does not report its version", answer.stderr.strip())
    return match[1].removeprefix("1.")


def _missing(message: str, found: str) -> SparkMissing:
    return SparkMissing(
        f"Spark cannot start: {message}",
        found=found,
        expected=f"Java {MINIMUM_JAVA} or later in JAVA_HOME or on PATH",
        remedy="Run tools/setup-java.sh",
    )


def spark_home() -> Path:
    """The folder of the installed PySpark, found without importing it."""
    from importlib.util import find_spec

    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SparkMissing(
            "Spark cannot start: PySpark is not installed",
            expected="the packages of requirements/runtime.lock",
            remedy="Run make setup",
        )
    return Path(spec.origin).parent


def archive_path(java: Path, extra_jars: Sequence[Path] = (), folder: Path | None = None) -> Path:
    """The path of the class-data archive for this JVM, PySpark, class path and warm-up.

    The JVM refuses an archive for another class path; one of another warm-up lacks classes that
    our jobs now load. So the name contains all of these, the warm-up after the dash.
    """
    key = "\n".join(
        [
            str(java),
            java_version(java),
            package_version("pyspark"),
            str(spark_home()),
            *(str(jar) for jar in extra_jars),
        ]
    )
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return (folder or cache_dir()) / "cds" / f"spark-{digest}-{_warm_up()}.jsa"


def product_archive(java: Path, environ: Mapping[str, str] | None = None) -> Path:
    """The path of the archive for our own jobs: `$TANDEM_SPARK_ARCHIVE` (an image contains one at
    a fixed path), else in the cache under the name for this environment."""
    env = os.environ if environ is None else environ
    configured = env.get("TANDEM_SPARK_ARCHIVE")
    return Path(configured) if configured else archive_path(java, (), cache_dir(environ))


@cache
def _warm_up() -> str:
    """A digest of the code that determines which classes an archive contains."""
    sources = (
        PACKAGE / "spark" / "jobs" / "warm.py",
        PACKAGE.parents[1] / "tools" / "spark_warmup.py",
    )
    digest = hashlib.sha256()
    for source in sources:
        if source.is_file():  # only a checkout has the tools
            digest.update(source.read_bytes())
    return digest.hexdigest()[:8]


def java_options(archive: Path | None, *, short: bool = True, record: Path | None = None) -> str:
    """Flags for the driver's JVM; `record` writes a new archive when that JVM ends."""
    flags = ["-XX:+UseSerialGC"]
    if short:
        flags.append("-XX:TieredStopAtLevel=1")
    if record is not None:
        flags.append(f"-XX:ArchiveClassesAtExit={record}")
    elif archive is not None and archive.is_file():
        # `auto` (the default) starts without the archive if it does not match.
        flags.append(f"-XX:SharedArchiveFile={archive}")
    flags += ["-Xlog:disable", "-Xlog:all=error:stderr"]
    return " ".join(flags)


def session_conf() -> dict[str, str]:
    """The pinned settings under which statements have one meaning, which must not depend on the
    machine or on a cluster's defaults."""
    return dict(_SQL_CONF)


def memory_here(root: Path = Path("/"), machine: int | None = None) -> tuple[int, bool]:
    """How many bytes this process may use, and whether that is the limit of its container.

    Args:
        root: where the file system begins, for tests.
        machine: its memory in bytes; None for that of this machine.
    """
    if machine is None:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _LIMITS:
        try:
            text = (root / path).read_text().strip()
        except OSError:
            continue  # no such control group
        # Version 1 says a huge number for none.
        if text.isdecimal() and 0 < int(text) < machine:
            return int(text), True
    return machine, False


def sizes_here() -> tuple[int, int]:
    """The cores and the heap in bytes of a job on this machine, unless its request has others.

    The heap may grow to a quarter of the memory. Up to half of the memory is for the Python
    workers, one for each core. The rest is for the system, and for jobs at the same time: all get
    the same sizes, so that a process that waits for a job can do any of them. No size is less than
    Spark needs for a small job.
    """
    memory, _ = memory_here()
    # macOS has no affinity of processes.
    affinity = getattr(os, "sched_getaffinity", None)
    own = len(affinity(0)) if affinity else os.cpu_count() or 1
    cores = max(min(own, memory // 2 // WORKER_BYTES), _LEAST_CORES)
    return cores, min(max(memory // 4, _LEAST_HEAP), _MOST_HEAP)


def build_conf(
    *,
    cores: int = 2,
    memory_bytes: int = 0,
    short: bool = True,
    extra_jars: Sequence[Path] = (),
    record_archive: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Spark settings for one local driver that runs its own tasks.

    Args:
        cores: concurrent tasks.
        memory_bytes: heap of the JVM; 0 leaves Spark's default of 1 GiB. The Python workers that
            decode and encode Parquet use memory outside it.
        short: see `tandem.jobs.runner.SHORT_JOB_BYTES`.
        extra_jars: put first on the class path (tests: Delta's jars; the product needs none).
        record_archive: write a class-data archive to this path when the JVM ends.

    Raises:
        SparkMissing: no usable Java.
    """
    java = find_java(environ)
    if extra_jars:
        archive = archive_path(java, extra_jars, cache_dir(environ))
    else:
        archive = product_archive(java, environ)
    conf = {
        "spark.master": f"local[{cores}]",
        "spark.ui.enabled": "false",
        **JOB_CONF,
        "spark.driver.extraJavaOptions": java_options(archive, short=short, record=record_archive),
        # Otherwise a host name is looked up at start, which takes seconds if DNS is slow.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.pyspark.python": sys.executable,
        "spark.sql.shuffle.partitions": str(cores),
        "spark.default.parallelism": str(cores),
        **session_conf(),
    }
    if memory_bytes:
        conf["spark.driver.memory"] = f"{max(memory_bytes >> 20, 512)}m"
    if extra_jars:
        conf["spark.driver.extraClassPath"] = os.pathsep.join(str(jar) for jar in extra_jars)
    return conf


def launch_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for processes of this one that run Spark's scripts, and for their workers."""
    env = dict(os.environ if environ is None else environ)
    env["PYSPARK_PYTHON"] = sys.executable
    env["PYSPARK_DRIVER_PYTHON"] = sys.executable
    env.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # The launcher is a separate short-lived JVM that builds the command line.
    env.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    package, paths = str(PACKAGE.parent), env.get("PYTHONPATH", "").split(os.pathsep)
    env["PYTHONPATH"] = os.pathsep.join([package, *(p for p in paths if p and p != package)])
    return env


def context(app_name: str) -> SparkContext:
    """The context of a submitted application: `spark-submit` has passed the settings."""
    from pyspark import SparkConf, SparkContext

    conf = SparkConf().setAppName(app_name)
    return SparkContext.getOrCreate(conf)


def session(app_name: str, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A session with the pinned SQL settings, whatever the cluster's defaults are."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    for key, value in {**(conf or {}), **session_conf()}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    require_pinned(spark)
    return spark


def cancel(context: SparkContext, group: str) -> None:
    """End the jobs of Spark of a group, and those that it begins later: PySpark has no method."""
    of_java = context._jsc
    if of_java is not None:  # else it was stopped
        of_java.sc().cancelJobGroupAndFutureJobs(group)


def require_pinned(spark: SparkSession) -> None:
    """Check that a session has the pinned settings, whatever templates, files of settings,
    variables and Java options set: the meaning of a statement must not depend on them.

    Raises: InvalidSpec that names the setting, its value and the required one.
    """
    for key, value in session_conf().items():
        found = spark.conf.get(key, None)
        if found != value:
            raise InvalidSpec(
                "has a value that changes the meaning of statements",
                field=f"spec.sparkTemplate.spec.sparkConf.{key}",
                found=found,
                expected=value,
                remedy="Look for it in the image's spark-defaults.conf, in Java options, and in "
                "what spark.sql.extensions loads",
            )


# Ends a local job whose engine has ended, so that a crash leaves no Spark processes running.


PARENT = "TANDEM_PARENT_PID"
"""Environment variable of a job: the process that it must not outlive."""
CHECK_SECONDS = 1.0


def alive(pid: int) -> bool:
    """Whether a process of this machine runs: a zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # A zombie process still accepts signals, but runs nothing.
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as source:
            return source.read().rsplit(")", 1)[-1].split()[0] != "Z"
    except OSError:
        return True


@cache
def watch_parent() -> None:
    """From the first call on, end this process group when the engine that started it ends. In a
    cluster the variable is not set, and Kubernetes ends the job."""
    text = os.environ.get(PARENT)
    if not text:
        return
    parent = int(text)
    wait = threading.Event()

    def watch() -> None:
        while alive(parent):
            wait.wait(CHECK_SECONDS)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=watch, name="tandem-orphan", daemon=True).start()
