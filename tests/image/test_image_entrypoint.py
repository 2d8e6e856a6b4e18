"""What the image's entrypoint starts, with programs that only say how they were called."""

from __future__ import annotations

import os
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "image" / "entrypoint.sh"
SAY = """#!/bin/sh
for word in "$0" "$@"; do printf "%s\\n" "$word"; done
echo "conf=${SPARK_CONF_DIR-none}"
"""
EXECUTOR = {
    "SPARK_EXECUTOR_MEMORY": "2g",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "exec-3",
}


class Container:
    """A folder that looks enough like the image."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("bin/tandem", "bin/other", "spark/bin/spark-submit", "java/bin/java"):
            self._program(name, SAY)
        self._program("tini", '#!/bin/sh\nshift 2\nexec "$@"\n')
        text = SCRIPT.read_text()
        assert text.count("/usr/bin/tini") == 1
        self._program("entrypoint.sh", text.replace("/usr/bin/tini", str(root / "tini")))
        self.env = {
            "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
            "SPARK_HOME": str(root / "spark"),
            "JAVA_HOME": str(root / "java"),
            "TANDEM_SPARK_ARCHIVE": "/opt/tandem/spark.jsa",
        }

    def _program(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run(self, *arguments: str, **more: str) -> list[str]:
        """The words of the started program; the last says what SPARK_CONF_DIR is for it."""
        done = subprocess.run(
            [str(self.root / "entrypoint.sh"), *arguments],
            env={**self.env, **more},
            cwd=self.root,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout.replace(f"{self.root}/", "").splitlines()


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def test_unknown_commands_go_to_tandem(container: Container) -> None:
    assert container.run("operator", "--namespace", "a b")[:-1] == [
        *("bin/tandem", "operator", "--namespace", "a b"),
    ]
    assert container.run("--help")[:-1] == ["bin/tandem", "--help"]
    assert container.run()[:-1] == ["bin/tandem"]
    assert container.run("tandem", "run", "-f", "x.yaml")[:-1] == [
        "bin/tandem",
        "run",
        "-f",
        "x.yaml",
    ]
    assert container.run("other", "-c", "x y")[:-1] == ["bin/other", "-c", "x y"]


def settings(container: Container, text: str = "spark.app.name=x\n", *more: str) -> Path:
    """What Kubernetes mounts: links over a folder whose name begins with two dots."""
    folder = container.root / "conf"
    data = folder / "..2026_11_21"
    data.mkdir(parents=True)
    (folder / "..data").symlink_to(data.name)
    for name in ("spark.properties", *more):
        (data / name).write_text(text)
        (folder / name).symlink_to(f"..data/{name}")
    return folder


def driver(container: Container, folder: Path) -> list[str]:
    return container.run(
        *("driver", "--properties-file", f"{folder}/spark.properties"),
        *("--class", "org.apache.spark.deploy.PythonRunner"),
        *("local:///opt/tandem/spark_apps/rewrite.py", "--location", "s3://lake/a b"),
        SPARK_DRIVER_BIND_ADDRESS="10.0.0.5",
        SPARK_CONF_DIR=str(folder),
    )


def test_a_driver_is_submitted_as_a_client_with_the_archive(container: Container) -> None:
    words = driver(container, settings(container))
    assert words[0] == "spark/bin/spark-submit"
    confs = [after for word, after in pairwise(words) if word == "--conf"]
    assert confs[:2] == [
        "spark.driver.bindAddress=10.0.0.5",
        "spark.executorEnv.SPARK_DRIVER_POD_IP=10.0.0.5",
    ]
    assert confs[2].startswith(
        "spark.driver.defaultJavaOptions=-XX:SharedArchiveFile=/opt/tandem/spark.jsa -Xshare:auto"
    )
    assert words[words.index("--deploy-mode") + 1] == "client"
    assert words[-8:-1] == [
        *("--properties-file", "conf/spark.properties"),
        *("--class", "org.apache.spark.deploy.PythonRunner"),
        *("local:///opt/tandem/spark_apps/rewrite.py", "--location", "s3://lake/a b"),
    ]
    # A folder with files on the class path would rule the archive out.
    assert words[-1] == "conf=none"


def test_user_settings_for_every_driver_stay(container: Container) -> None:
    words = driver(container, settings(container, "spark.driver.defaultJavaOptions=-Dx=y\n"))
    assert not [word for word in words if "SharedArchiveFile" in word]


def test_a_folder_of_settings_with_more_in_it_stays_on_the_class_path(container: Container) -> None:
    folder = settings(container, "x=y\n", "log4j2.properties")
    assert driver(container, folder)[-1] == "conf=conf"
    words = container.run("executor", **EXECUTOR, SPARK_CONF_DIR=str(folder))
    assert words[words.index("-cp") + 1].startswith("conf:")


def test_an_executor_is_configured_by_its_environment(container: Container) -> None:
    words = container.run(
        "executor",
        **EXECUTOR,
        SPARK_CONF_DIR=str(settings(container)),
        **{f"SPARK_JAVA_OPT_{n}": f"-Dn={n} and more" for n in range(12)},
    )
    assert words[0] == "java/bin/java"
    assert words[1:3] == ["-XX:SharedArchiveFile=/opt/tandem/spark.jsa", "-Xshare:auto"]
    # Each option is one word, in the driver's order: the tenth after the ninth.
    assert words[5:17] == [f"-Dn={n} and more" for n in range(12)]
    assert words[17:] == [
        *("-Xms2g", "-Xmx2g", "-cp", f"spark/conf:spark/jars/*:{container.root}"),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", "spark://CoarseGrainedScheduler@driver:7078"),
        *("--executor-id", "3", "--cores", "2", "--app-id", "spark-1"),
        *("--hostname", "10.0.0.7", "--resourceProfileId", "0", "--podName", "exec-3"),
        "conf=none",
    ]


def test_class_paths_of_users_come_where_spark_has_them(container: Container) -> None:
    words = container.run(
        "executor",
        **EXECUTOR,
        SPARK_CLASSPATH="/mine/*",
        HADOOP_CONF_DIR="/opt/hadoop/conf",
        SPARK_EXTRA_CLASSPATH="/extra.jar",
        SPARK_DIST_CLASSPATH="/dist.jar",
    )
    assert words[words.index("-cp") + 1].split(":")[:6] == [
        *("spark/conf", "/opt/hadoop/conf", "/mine/*", "spark/jars/*", "/extra.jar", "/dist.jar")
    ]


def test_a_missing_variable_is_an_error_that_names_it(container: Container) -> None:
    env = {name: value for name, value in EXECUTOR.items() if name != "SPARK_DRIVER_URL"}
    with pytest.raises(subprocess.CalledProcessError) as raised:
        container.run("executor", **env)
    assert "SPARK_DRIVER_URL" in raised.value.stderr
