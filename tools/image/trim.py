"""Make an installed PySpark small, and its class path the same on every machine.

    python3 tools/image/trim.py SITE_PACKAGES LIST

Runs in the image's build, with Python alone. It removes what the list names and the natives of
other processors, then moves the jars to `pyspark/lib/` and leaves one jar in `pyspark/jars/`
whose manifest names them all, in order of their names. Java expands `jars/*` in the order in
which a folder is read, which differs between file systems, and a class-data archive fits only
the class path for which it was made. Jars of others can still be added to `pyspark/jars/`.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

CLASS_PATH_JAR = "tandem-class-path.jar"
MADE_S = 1_767_225_600
"""The time of every jar (2026-01-01): Java compares it with the one in its archive."""
NATIVE_NAMES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch_64", "arm64": "aarch_64"}
"""How jars name what `platform.machine()` answers."""
_MANIFEST_LINE = 72


def patterns(text: str) -> list[str]:
    """The first word of each line that is no comment; what follows is the reason."""
    lines = (line.strip() for line in text.splitlines())
    return [line.split()[0] for line in lines if line and not line.startswith("#")]


def others_natives(names: Sequence[str], machine: str) -> list[str]:
    """Jars of Linux natives for other processors than `machine`."""
    own = f"-linux-{NATIVE_NAMES.get(machine, machine)}.jar"
    return [name for name in names if "-linux-" in name and not name.endswith(own)]


def class_path(names: Sequence[str]) -> list[str]:
    """SLF4J's API first, as Spark's launcher has it, then the order of names."""
    return sorted(names, key=lambda name: (not name.startswith("slf4j-api-"), name))


def manifest(jars: Sequence[str]) -> bytes:
    """A manifest with these paths as its class path; its lines have at most 72 bytes."""
    lines = []
    for line in ("Manifest-Version: 1.0", "Class-Path: " + " ".join(jars)):
        rest = line
        while len(rest) > _MANIFEST_LINE:
            lines.append(rest[:_MANIFEST_LINE])
            rest = " " + rest[_MANIFEST_LINE:]
        lines.append(rest)
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def remove(site: Path, wanted: Sequence[str]) -> None:
    """Raises: SystemExit if a pattern matches nothing: then the list is of another version."""
    for pattern in wanted:
        found = list(site.glob(pattern))
        if not found:
            raise SystemExit(f"{pattern} matches nothing: correct the list of what is left out")
        for path in found:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def order_jars(spark: Path) -> None:
    """Move the jars to `lib/`, and name them all in one jar."""
    jars, lib = spark / "jars", spark / "lib"
    lib.mkdir()
    names = class_path([jar.name for jar in jars.glob("*.jar")])
    for name in names:
        (jars / name).rename(lib / name)
        os.utime(lib / name, (MADE_S, MADE_S))
    target = jars / CLASS_PATH_JAR
    with zipfile.ZipFile(target, "w") as jar:
        entry = zipfile.ZipInfo("META-INF/MANIFEST.MF", (2026, 1, 1, 0, 0, 0))
        jar.writestr(entry, manifest([f"../lib/{name}" for name in names]))
    os.utime(target, (MADE_S, MADE_S))


def main(site: Path, listed: Path, machine: str) -> None:
    remove(site, patterns(listed.read_text()))
    jars = site / "pyspark" / "jars"
    for name in others_natives([jar.name for jar in jars.glob("*.jar")], machine):
        (jars / name).unlink()
    order_jars(site / "pyspark")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), platform.machine())
