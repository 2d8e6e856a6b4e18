"""`tools/setup-java.sh` where there is no Java: it installs one, or says one sentence."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.bare_machine import bare, program

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "setup-java.sh"
PROGRAMS = ("sh", "sed", "head", "mktemp", "rm", "tail", "chmod", "mkdir", "cat")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH without Java and without a package manager; the user is root."""
    return bare(tmp_path / "bin", PROGRAMS)


def java(version: str) -> str:
    return f"echo 'openjdk version \"{version}\"' >&2"


def run(machine: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(machine / "sh"), str(SCRIPT)],
        env={"PATH": str(machine), **more},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_nothing_is_printed_where_java_exists(machine: Path, version: str) -> None:
    program(machine, "java", java(version))
    done = run(machine)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392"])
def test_an_old_java_is_ignored(machine: Path, version: str) -> None:
    program(machine, "java", java(version))
    assert run(machine).returncode == 1


def test_root_with_apt_gets_it_installed(machine: Path, tmp_path: Path) -> None:
    log = tmp_path / "apt.log"
    later = f"#!/bin/sh\\n{java('17.0.15')}\\n".replace("'", "'\\''")
    program(
        machine,
        "apt-get",
        f'echo "$@" >> {log}\n'
        f"if [ \"$1\" = install ]; then printf '{later}' > {machine}/java; "
        f"chmod 755 {machine}/java; fi",
    )
    done = run(machine)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "Installing openjdk-17-jre-headless, which Spark needs.\n"
    update, install = log.read_text().splitlines()
    assert update.startswith("update")
    assert install.endswith("--no-install-recommends openjdk-17-jre-headless")


def test_a_failed_installation_shows_why_and_the_command(machine: Path) -> None:
    program(machine, "apt-get", "echo 'no network'; exit 100")
    done = run(machine)
    assert done.returncode == 1
    assert "no network" in done.stderr
    assert done.stderr.endswith("run `apt-get install openjdk-17-jre-headless`.\n")


@pytest.mark.parametrize(
    ("manager", "command"),
    [
        ("apt-get", "sudo apt-get install -y openjdk-17-jre-headless"),
        ("dnf", "sudo dnf install -y java-17-openjdk-headless"),
        ("brew", "brew install openjdk@17"),
        ("", "export JAVA_HOME="),
    ],
)
def test_others_get_one_sentence_with_one_command(
    machine: Path, manager: str, command: str
) -> None:
    program(machine, "id", "echo 1000")
    if manager:
        program(machine, manager, "exit 1")
    done = run(machine)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("Spark needs Java 17 or later, and there is none: run `")
    assert command in done.stderr


def test_a_java_home_without_java_is_named(machine: Path, tmp_path: Path) -> None:
    program(machine, "java", java("17.0.15"))
    home = tmp_path / "home"
    done = run(machine, JAVA_HOME=str(home))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"JAVA_HOME={home}" in done.stderr
    assert "run `unset JAVA_HOME`" in done.stderr
