"""What a child is begun with, and how its runs end: what the operator has of a child without what
the child imports."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Final

from tandem.kube.runtime.context import OperatorSettings
from tandem.kube.runtime.tenants import SmallJobRules, Tenant
from tandem.spark.runtime.session import memory_here

LEAST_MEMORY: Final = 256 << 20
"""The least bound under which a child does anything: it begins with two thirds of it."""


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """What a child is made with.

    Args:
        operator: without what is only the operator's own, such as the password of etcd.
        tenant: whose child it is; its Secret is read later.
        member: the child's name and nonce among those that hold claims, as of `LockMembers`.
        memory: how many bytes the process may have, None for any number.
        rules: which jobs it does itself; None for no job.
        folder: its own one, for temporary files, if it may have a JVM.
        configure: called first.
    """

    operator: OperatorSettings
    tenant: Tenant
    member: tuple[str, str]
    memory: int | None
    rules: SmallJobRules | None
    folder: Path | None
    configure: Callable[[], None] | None


class RunEnd(StrEnum):
    """How the controller of a resource has ended."""

    OVER = "over"
    LEFT = "left"
    """It leaves the resource to the next one, or does not know it."""
    FAILED = "failed"
    """By a bug, which the child has logged."""


def start(own: socket.socket, settings: ChildSettings, environ: Mapping[str, str]) -> None:
    """The first call in a child. The rest is given by its name, and there already: by the template,
    and never by the operator, which has this function to refer to."""
    import_module("tandem.kube.children.child").main(own, settings, environ)


_OF_POD: Final = 2
"""Half of a pod's memory: the operator itself, and its other children, share the rest."""
_OF_MACHINE: Final = 4


def default_table_memory(root: Path = Path("/"), machine: int | None = None) -> int:
    """Bytes: half of the pod's limit, or a quarter of the machine's memory without one.

    Args:
        root: where the file system begins, for tests.
        machine: its memory in bytes; None for that of this machine.
    """
    memory, limited = memory_here(root, machine)
    return memory // (_OF_POD if limited else _OF_MACHINE)
