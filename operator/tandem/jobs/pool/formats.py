"""The pool's configuration, one of its jobs, and how that ended: JSON in arguments and in the
pool's ConfigMap. Nothing secret.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, TypeVar

from pydantic import Field, ValidationError

from tandem.jobs.arguments import from_pieces, in_pieces
from tandem.jobs.formats import Format

_F = TypeVar("_F", bound=Format)

POOL_APP: Final = "job_pool"
"""The application that does the jobs of a pool."""
KUBECONFIG_VARIABLE: Final = "TANDEM_POOL_KUBECONFIG"
"""Environment variable of its driver: the kubeconfig to use, outside of a pod."""


class PoolConfig(Format):
    """What the driver of a pool is started with. Times in seconds.

    `name` is that of the application and of the ConfigMap. All of its jobs have the same
    `storage_options`, and read below `allowed` only (() for anywhere): a job itself names
    neither, so that one that another writer puts into the ConfigMap cannot extend them.
    """

    namespace: str
    name: str
    slots: Annotated[int, Field(gt=0)]
    """Jobs at once."""
    most_jobs: Annotated[int, Field(gt=0)] = 200
    """After so many it takes no more, and ends with the last one."""
    idle_s: Annotated[float, Field(gt=0)] = 300.0
    """It ends when it had no job for so long."""
    oldest_s: Annotated[float, Field(gt=0)] = 12 * 3600.0
    """From this age on it takes no more jobs."""
    drain_s: Annotated[float, Field(gt=0)] = 3600.0
    """How long jobs may go on in a pool that takes no more."""
    storage_options: dict[str, str] = Field(default_factory=dict)
    allowed: tuple[str, ...] = ()


class PooledJob(Format):
    """A job: the application of `spark_apps/` that does it, the table's location, and the path of
    its `job.json` below that. `posted_ms` orders jobs that are seen together."""

    app: str
    location: str
    spec: str
    posted_ms: int


class PooledEnd(Format):
    """How a job ended: the exit code that its own application would have, and one line."""

    code: int
    message: str = ""


def arguments(config: PoolConfig) -> tuple[str, ...]:
    """The configuration as pieces of an argument."""
    return in_pieces(config)


def read_config(pieces: Iterable[str]) -> PoolConfig:
    """The configuration that `arguments` wrote. Raises: InvalidSpec."""
    return from_pieces(PoolConfig, pieces)


def encode(content: Format) -> str:
    return content.model_dump_json(by_alias=True)


def decode(format_: type[_F], text: str) -> _F | None:
    """None if the text is no such thing: another client may write into the ConfigMap."""
    try:
        return format_.model_validate_json(text)
    except ValidationError:
        return None
