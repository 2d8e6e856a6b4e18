"""What of `tools/single_node` and `tools/build-cluster.sh` can be judged without a node."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from cluster_processes import REPOSITORY
from single_node import archives, needs

TOOLS = REPOSITORY / "tools"


def pinned(part: str, module: str) -> str:
    pins = (TOOLS / part / "go.mod").read_text()
    [version] = set(re.findall(rf"{re.escape(module)} (v\S+)", pins))
    return str(version)


def test_a_node_has_the_versions_that_tests_use() -> None:
    module = "k8s.io/kubernetes"
    assert pinned("kubernetes-node", module) == pinned("kubernetes", module)
    module = "github.com/kubeflow/spark-operator/v2"
    assert pinned("spark-operator", module) == pinned("spark-operator-crds", module)


def test_an_image_of_a_program_and_one_over_it(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    base = archives.of_programs(
        tmp_path / "base.tar", "docker.io/library/one:1", {"/bin/one": program}, ["/bin/one"]
    )
    above = archives.with_programs(
        base, tmp_path / "above.tar", "docker.io/library/two:1", {"/bin/two": program}, ["/bin/two"]
    )
    assert archives.names_in(base) == ["docker.io/library/one:1"]
    assert archives.names_in(above) == ["docker.io/library/two:1"]
    with tarfile.open(above) as tar:
        [manifest] = json.loads(tar.extractfile("manifest.json").read())  # type: ignore[union-attr]
        config = json.loads(tar.extractfile(manifest["Config"]).read())  # type: ignore[union-attr]
        found = []
        for layer in manifest["Layers"]:
            with tarfile.open(fileobj=tar.extractfile(layer)) as files:
                found.append([name for name in files.getnames() if name.startswith("bin/")])
    assert found == [["bin/one"], ["bin/two"]]
    assert config["config"]["Entrypoint"] == ["/bin/two"]
    assert len(config["rootfs"]["diff_ids"]) == len(found)


def test_missing_programs_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(needs, "_has", lambda name: name not in {"runc", "ctr"})
    with pytest.raises(needs.NotHere, match=r"apt-get install .*containerd.* runc"):
        needs.check()


def test_all_that_make_e2e_needs_is_said_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TANDEM_STANDIN", "1")
    monkeypatch.setattr(needs, "_has", lambda _: False)
    with pytest.raises(needs.NotHere, match=r"apt-get install .*containerd.*mmdebstrap.* podman"):
        needs.check(images=True)
    # As `make e2e` calls it: by any Python, on a machine without these programs.
    for images in ([], ["images"]):
        done = subprocess.run(
            [sys.executable, "-S", "-I", needs.__file__, *images],
            env={"PATH": str(tmp_path), "TANDEM_STANDIN": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 1
        assert done.stderr.startswith("make e2e: ")
        assert "Traceback" not in done.stderr
    assert done.stderr.endswith("mmdebstrap podman\n")


@pytest.mark.parametrize("daemon", [False, True])
def test_a_docker_without_its_daemon_builds_no_image(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, daemon: bool
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\nexit {0 if daemon else 1}\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TANDEM_STANDIN", raising=False)
    monkeypatch.setattr(needs, "_has", lambda name: name == "docker")
    with nullcontext() if daemon else pytest.raises(needs.NotHere, match="podman"):
        needs.check_images()


def test_a_node_needs_root_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(needs.NotHere, match=r"needs root.*KUBECONTEXT"):
        needs.check()
