"""What can be known of the image without building it: see docs/image.md for what a build shows."""

from __future__ import annotations

import ast
import fnmatch
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from image import trim
from tandem.spark.application.port import ApplicationSettings

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(sysconfig.get_path("purelib"))
LEFT_OUT = ROOT / "tools" / "image" / "left-out.txt"
SCRIPTS = sorted((ROOT / "tools" / "image").glob("*.sh"))


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions: the word and the rest, continued lines joined."""
    text = re.sub(r"(?m)^\s*#.*\n", "", (ROOT / "Dockerfile").read_text())
    lines = text.replace("\\\n", " ").splitlines()
    pairs = [line.split(None, 1) for line in lines if line.strip()]
    return [(word.upper(), rest) for word, rest in pairs]


def variables() -> dict[str, str]:
    found: dict[str, str] = {}
    for word, rest in instructions():
        if word == "ENV":
            for name, quoted, plain in re.findall(r'(\w+)=(?:"([^"]*)"|(\S+))', rest):
                found[name] = quoted or plain
    return found


def copied() -> list[str]:
    """Paths of this tree that the Dockerfile copies."""
    sources: list[str] = []
    for word, rest in instructions():
        if word == "COPY" and "--from=" not in rest:
            sources += [part for part in rest.split() if not part.startswith("--")][:-1]
    return sources


def test_copied_files_exist_and_are_in_the_build_context() -> None:
    lets = [
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    assert copied()
    for source in copied():
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, let) or source.startswith(f"{let}/") for let in lets), (
            f".dockerignore keeps {source} out"
        )
    for let in lets:
        assert any(
            fnmatch.fnmatch(source, let) or source.startswith(f"{let}/") for source in copied()
        ), f".dockerignore lets {let} in, which nothing copies"


def test_nothing_is_fetched_but_packages() -> None:
    lines = instructions()
    assert not [rest for word, rest in lines if word == "ADD"]
    commands = " ".join(rest for word, rest in lines if word == "RUN")
    assert not re.findall(r"curl|wget|git clone|https?://|--index-url|--trusted-host", commands)
    script = (ROOT / "tools" / "image" / "install.sh").read_text()
    installs = [
        line for line in script.splitlines() if re.search(r"bin/pip.* (install|wheel) ", line)
    ]
    local = ("/tmp/wheels/", "-w /tmp/wheels .")
    for line in installs:
        assert "--no-deps" in line
        assert "--require-hashes" in line or any(path in line for path in local), line


def test_it_runs_without_rights() -> None:
    lines = instructions()
    last = max(i for i, (word, _) in enumerate(lines) if word == "FROM")
    final = lines[last:]
    users = [rest for word, rest in final if word == "USER"]
    assert users == ["185:185"]
    after = final[[word for word, _ in final].index("USER") :]
    assert not [word for word, _ in after if word in ("RUN", "COPY")]
    assert ("ENTRYPOINT", '["/opt/entrypoint.sh"]') in final
    # Files of the build alone are not copied as a whole.
    for word, rest in final:
        if word == "COPY" and "--from=" in rest:
            assert rest.split()[1].startswith("/opt/tandem/")


def test_secrets_are_lent_to_the_one_step_that_fetches() -> None:
    with_secrets = [r for w, r in instructions() if w == "RUN" and "type=secret" in r]
    assert len(with_secrets) == 1
    assert with_secrets[0].endswith("tools/image/install.sh dependencies")
    # A secret without a target lies below /run/secrets, which is in no layer.
    assert "target=/etc" not in with_secrets[0]


def test_paths_are_those_that_the_operator_gives_to_jobs() -> None:
    env = variables()
    assert ApplicationSettings().apps_dir == f"local://{env['TANDEM_SPARK_APPS']}"
    assert f"COPY spark_apps {env['TANDEM_SPARK_APPS']}" in (ROOT / "Dockerfile").read_text()
    site = env["SPARK_HOME"].removesuffix("/pyspark")
    assert site in (ROOT / "Dockerfile").read_text().split("trim.py ")[-1]
    assert env["PYSPARK_PYTHON"].startswith(site.split("/lib/")[0])
    assert f"COPY --from=build {env['TANDEM_SPARK_ARCHIVE']} " in (ROOT / "Dockerfile").read_text()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_have_valid_syntax(script: Path) -> None:
    subprocess.run(["sh", "-n", str(script)], check=True)
    assert script.stat().st_mode & 0o111


def test_locked_requirements_have_hashes() -> None:
    for name, packages in (
        ("runtime.lock", ("pyspark", "pyarrow")),
        ("part-copy.lock", ("botocore", "jmespath")),
        ("dev.lock", ("setuptools",)),
    ):
        text = (ROOT / "requirements" / name).read_text()
        # The pieces that install.sh cuts out begin with a name and end without a backslash.
        entries = re.findall(
            r"(?m)^([a-z][^=\n]*)==\S+.*\\\n((?:    --hash=sha256:\w+(?: \\)?\n?)+)", text
        )
        assert set(packages) <= {package for package, _ in entries}
        assert len(entries) == len(re.findall(r"(?m)^[a-z]", text))


# What is left out


def matched() -> dict[str, list[Path]]:
    return {pattern: list(SITE.glob(pattern)) for pattern in trim.patterns(LEFT_OUT.read_text())}


def test_the_list_of_trimmed_files_is_of_the_locked_versions() -> None:
    found = matched()
    assert [pattern for pattern, paths in found.items() if not paths] == []
    for line in LEFT_OUT.read_text().splitlines():
        if line and not line.startswith("#"):
            assert len(line.split(None, 1)) == 2, f"{line}: why?"
    jars = [path for paths in found.values() for path in paths if path.suffix == ".jar"]
    assert len(jars) == len(set(jars)), "two patterns match one jar"


def test_files_that_jobs_need_are_not_trimmed() -> None:
    gone = {path.name for paths in matched().values() for path in paths}
    jars = {jar.name for jar in (SITE / "pyspark" / "jars").glob("*.jar")}
    needed = (
        *("spark-core_", "spark-sql_", "spark-sql-api_", "spark-catalyst_", "spark-kubernetes_"),
        *("spark-launcher_", "spark-unsafe_", "spark-network-common_", "spark-network-shuffle_"),
        *(
            "spark-kvstore_",
            "spark-common-utils_",
            "spark-tags_",
            "spark-variant_",
            "spark-sketch_",
        ),
        *("kubernetes-client-7", "kubernetes-client-api", "kubernetes-model-core", "vertx-core"),
        *("hadoop-client-api", "hadoop-client-runtime", "hive-storage-api", "orc-core", "parquet-"),
        *("arrow-vector", "py4j", "pickle", "icu4j", "janino", "scala-library", "scala-reflect"),
        *(
            "antlr4-runtime",
            "ivy",
            "jackson-databind",
            "log4j-core",
            "netty-transport-4",
            "zstd-jni",
        ),
        *("univocity-parsers", "tink", "jts-core", "datasketches-java", "slf4j-api"),
    )
    for start in needed:
        found = {name for name in jars if name.startswith(start)}
        assert found, start
        assert not found & gone, start


def imported() -> list[str]:
    """Modules that Tandem's own import, at their start or when they are needed."""
    names: set[str] = set()
    files = [*(ROOT / "operator").rglob("*.py"), *(ROOT / "spark_apps").glob("*.py")]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module)
    return sorted(name for name in names if name.split(".")[0] not in ("__future__", "tandem"))


IN_THE_IMAGE = """
import importlib, importlib.machinery, pathlib, sys
gone = set(sys.stdin.read().splitlines())

class Trimmed:
    def find_spec(name, path=None, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        origin = pathlib.Path((spec and spec.origin) or "/")
        if gone & {str(origin), *map(str, origin.parents)}:
            raise ModuleNotFoundError(f"{origin} is trimmed", name=name)

sys.meta_path.insert(0, Trimmed)
for name in sys.argv[1:]:
    importlib.import_module(name)
maps = pathlib.Path("/proc/self/maps")
print(maps.read_text() if maps.exists() else "")
"""
"""Imports modules as where the files that it reads are not there; prints what it has loaded."""


def test_what_tandem_imports_is_not_trimmed() -> None:
    """Nor the libraries that it loads. What a package does without is left to the package."""
    names = imported()
    assert {"pyarrow.flight", "pyspark.sql", "kopf"} <= set(names)
    gone = {str(path) for paths in matched().values() for path in paths}
    done = subprocess.run(
        [sys.executable, "-c", IN_THE_IMAGE, *names],
        input="\n".join(gone), capture_output=True, check=False, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {line.split(maxsplit=5)[-1] for line in done.stdout.splitlines() if line} & gone == set()


# How the class path is made the same everywhere


def fake_spark(folder: Path, names: list[str]) -> Path:
    jars = folder / "pyspark" / "jars"
    jars.mkdir(parents=True)
    for name in names:
        (jars / name).write_bytes(b"")
    return folder


def test_one_jar_names_all_others_in_order(tmp_path: Path) -> None:
    names = sorted(jar.name for jar in (SITE / "pyspark" / "jars").glob("*.jar"))
    site = fake_spark(tmp_path, names)
    listed = tmp_path / "list"
    listed.write_text("# comment\npyspark/jars/hive-exec-*.jar  Hive\n")
    trim.main(site, listed, "x86_64")
    spark = site / "pyspark"
    assert [jar.name for jar in (spark / "jars").iterdir()] == [trim.CLASS_PATH_JAR]
    with zipfile.ZipFile(spark / "jars" / trim.CLASS_PATH_JAR) as jar:
        raw = jar.read("META-INF/MANIFEST.MF")
    assert max(len(line) for line in raw.split(b"\r\n")) <= 72
    text = raw.decode().replace("\r\n ", "")
    [line] = [line for line in text.split("\r\n") if line.startswith("Class-Path: ")]
    paths = line.removeprefix("Class-Path: ").split(" ")
    assert {(spark / "jars" / path).resolve() for path in paths} == set((spark / "lib").iterdir())
    assert paths[0].startswith("../lib/slf4j-api-")
    assert paths[1:] == sorted(paths[1:])
    kept = set(names) - {path.removeprefix("../lib/") for path in paths}
    assert any(name.startswith("hive-exec-") for name in kept)
    assert all(
        name.startswith("hive-exec-") or "aarch_64" in name or "riscv" in name for name in kept
    )
    times = {jar.stat().st_mtime for jar in (spark / "lib").iterdir()}
    assert times == {float(trim.MADE_S)}


def test_native_libraries_of_the_target_architecture_stay(tmp_path: Path) -> None:
    names = ["a-linux-x86_64.jar", "a-linux-aarch_64.jar", "a-linux-riscv64.jar", "b.jar"]
    for machine, own in (("x86_64", names[0]), ("aarch64", names[1])):
        site = fake_spark(tmp_path / machine, names)
        listed = tmp_path / "list"
        listed.write_text("")
        trim.main(site, listed, machine)
        assert {jar.name for jar in (site / "pyspark" / "lib").iterdir()} == {own, "b.jar"}


def test_a_pattern_that_matches_nothing_stops_the_build(tmp_path: Path) -> None:
    site = fake_spark(tmp_path, ["a.jar"])
    listed = tmp_path / "list"
    listed.write_text("pyspark/jars/b*.jar  gone since\n")
    with pytest.raises(SystemExit, match=r"pyspark/jars/b\*\.jar matches nothing"):
        trim.main(site, listed, "x86_64")
    assert (site / "pyspark" / "jars" / "a.jar").exists()
