"""Container images without a container engine: tar files as `docker save` writes them.

For programs that need nothing but their C library, and for one more layer over an image.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CREATED = "2026-01-01T00:00:00Z"
_USERS = "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"
_GROUPS = "root:x:0:\nnobody:x:65534:\n"


def of_programs(
    target: Path,
    name: str,
    programs: Mapping[str, Path],
    entrypoint: Sequence[str],
    *,
    links: Mapping[str, str] | None = None,
) -> Path:
    """An image `name` (with tag) of these programs, by their paths in it, and the shared
    libraries of this machine that they need. Runs as user `nobody`; has /tmp and a user list."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for folder in ("etc", "tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        for path, text in (("etc/passwd", _USERS), ("etc/group", _GROUPS)):
            _add(tar, path, text.encode())
        for path, program in {**_libraries(programs.values()), **programs}.items():
            _add(tar, path.lstrip("/"), program.read_bytes(), mode=0o755)
        for link, to in (links or {}).items():
            entry = tarfile.TarInfo(link.lstrip("/"))
            entry.type, entry.linkname = tarfile.SYMTYPE, to
            tar.addfile(entry)
    config = {
        "architecture": _architecture(),
        "os": "linux",
        "created": _CREATED,
        "config": {"Env": [_PATH], "User": "65534:65534", "Entrypoint": list(entrypoint)},
        "rootfs": {"type": "layers", "diff_ids": []},
        "history": [],
    }
    return _write(target, name, config, [], layer.getvalue())


def with_programs(
    base: Path, target: Path, name: str, programs: Mapping[str, Path], entrypoint: Sequence[str]
) -> Path:
    """The image in the archive `base` with these programs over it, as `name`."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for path, program in programs.items():
            _add(tar, path.lstrip("/"), program.read_bytes(), mode=0o755)
    with tarfile.open(base) as tar:
        [manifest] = json.loads(_read(tar, "manifest.json"))
        config = json.loads(_read(tar, manifest["Config"]))
        config["config"]["Entrypoint"] = list(entrypoint)
        config["config"].pop("Cmd", None)
        layers = [(_digest(digest), tar, path) for digest, path in zip(
            config["rootfs"]["diff_ids"], manifest["Layers"], strict=True)]  # fmt: skip
        return _write(target, name, config, layers, layer.getvalue())


def names_in(archive: Path) -> list[str]:
    """The names of the images in an archive."""
    with tarfile.open(archive) as tar:
        manifest = json.loads(_read(tar, "manifest.json"))
    return [name for image in manifest for name in image.get("RepoTags") or ()]


def _write(
    target: Path,
    name: str,
    config: dict[str, Any],
    below: Sequence[tuple[str, tarfile.TarFile, str]],
    layer: bytes,
) -> Path:
    digest = hashlib.sha256(layer).hexdigest()
    config["rootfs"]["diff_ids"].append(f"sha256:{digest}")
    config.setdefault("history", []).append({"created": _CREATED, "created_by": "tandem"})
    encoded = json.dumps(config).encode()
    manifest = {
        "Config": f"{hashlib.sha256(encoded).hexdigest()}.json",
        "RepoTags": [name],
        "Layers": [f"{each}.tar" for each in (*(each for each, _, _ in below), digest)],
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}")
    with tarfile.open(fresh, "w") as tar:
        _add(tar, str(manifest["Config"]), encoded)
        for each, archive, path in below:
            entry = archive.getmember(path)
            while entry.issym() or entry.islnk():
                entry = archive.getmember(entry.linkname.removeprefix("../"))
            copied = tarfile.TarInfo(f"{each}.tar")
            copied.size = entry.size
            tar.addfile(copied, archive.extractfile(entry))
        _add(tar, f"{digest}.tar", layer)
        _add(tar, "manifest.json", json.dumps([manifest]).encode())
    return fresh.rename(target)


def _add(tar: tarfile.TarFile, path: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def _read(tar: tarfile.TarFile, path: str) -> bytes:
    found = tar.extractfile(path)
    if found is None:
        raise ValueError(f"{path} is no file of the archive")
    return found.read()


def _digest(diff_id: str) -> str:
    return diff_id.removeprefix("sha256:")


def _libraries(programs: Any) -> dict[str, Path]:
    """What `ldd` says: the libraries' paths in the image and here, which are the same."""
    found = {}
    for program in programs:
        done = subprocess.run(["ldd", str(program)], capture_output=True, check=False, text=True)
        for path in re.findall(r"(/\S+) \(0x", done.stdout):
            found[path] = Path(path).resolve()
    return found


def _architecture() -> str:
    machine = subprocess.run(["uname", "-m"], stdout=subprocess.PIPE, check=True, text=True)
    return {"x86_64": "amd64", "aarch64": "arm64"}[machine.stdout.strip()]
