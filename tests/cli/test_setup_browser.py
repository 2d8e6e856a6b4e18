"""`tools/setup-browser.sh` where there is no browser: it installs one, or says one sentence."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.bare_machine import bare, program

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "setup-browser.sh"
PROGRAMS = ("sh", "mktemp", "rm", "tail", "chmod", "flock")
SHELL = "chromium-headless-shell"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH without a browser and without a package manager; the user is root."""
    return bare(tmp_path / "bin", PROGRAMS)


def run(machine: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(machine / "sh"), str(SCRIPT)],
        env={"PATH": str(machine), "TMPDIR": str(machine.parent), **more},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_working_browser_is_taken(machine: Path) -> None:
    program(machine, SHELL, "echo 'install the snap first' >&2; exit 1")
    program(machine, "google-chrome")
    done = run(machine)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{machine}/google-chrome\n", "")


def test_the_variable_wins(machine: Path) -> None:
    program(machine, SHELL)
    program(machine, "mine")
    assert run(machine, TANDEM_BROWSER=f"{machine}/mine").stdout == f"{machine}/mine\n"
    wrong = run(machine, TANDEM_BROWSER=f"{machine}/yours")
    assert wrong.returncode == 1
    assert "run `unset TANDEM_BROWSER`" in wrong.stderr


@pytest.mark.parametrize("package", [SHELL, "chromium"])
def test_root_with_apt_gets_it_installed(machine: Path, package: str) -> None:
    """Older distributions have the whole browser only."""
    program(
        machine,
        "apt-get",
        'for last in "$@"; do :; done\n[ "$1" = update ] && exit 0\n'
        f'[ "$last" = {package} ] || exit 100\n'
        f"printf '#!/bin/sh\\n' > {machine}/{package}; chmod 755 {machine}/{package}",
    )
    done = run(machine)
    assert (done.returncode, done.stdout) == (0, f"{machine}/{package}\n"), done.stderr
    assert done.stderr == f"Installing {SHELL}, in which a test opens a page.\n"


def test_a_failed_installation_shows_why_and_the_command(machine: Path) -> None:
    program(machine, "apt-get", "echo 'no network'; exit 100")
    done = run(machine)
    assert done.returncode == 1
    assert "no network" in done.stderr
    assert done.stderr.endswith(f"run `apt-get install {SHELL}`.\n")


@pytest.mark.parametrize(
    ("manager", "command"),
    [
        ("apt-get", f"sudo apt-get install -y {SHELL}"),
        ("dnf", "sudo dnf install -y chromium-headless"),
        ("brew", "brew install --cask chromium"),
        ("", "export TANDEM_BROWSER="),
    ],
)
def test_others_get_one_sentence_with_one_command(
    machine: Path, manager: str, command: str
) -> None:
    program(machine, "id", "echo 1000")
    if manager:
        program(machine, manager, "exit 1")
    done = run(machine)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert command in done.stderr
