"""Converts a `SparkApplication` to a job for this machine.

The reverse of `tandem.spark.application.manifest.build`, within the limits of one machine: sizes
are reduced to what it has, and settings of pods are ignored. Credentials are read from the Secrets
that the driver's `envFrom` refers to and go into the environment of the job's process; they are
never logged and never on a command line.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn
from urllib.parse import urlsplit

import structlog

from tandem.errors import InvalidSpec
from tandem.index.server.messages import LISTEN_VARIABLE, SECRETS_VARIABLE, read
from tandem.jobs.formats import APPS, INDEX_SERVER_APP
from tandem.jobs.runner import JobRequest
from tandem.json_types import Json
from tandem.kube.client.api import Api, ApiError, ResourcePath
from tandem.spark.application.port import CREDENTIALS_VOLUME
from tandem.spec.common import ATTEMPT_LABEL, INPUT_BYTES_ANNOTATION, OPERATION_LABEL
from tandem.storage.renewable import CREDENTIALS_FILE, CREDENTIALS_VARIABLE

_log = structlog.get_logger("tandem.kube.dev.controller")

_DANGEROUS = re.compile(
    r"PATH|HOME|SHELL|IFS|BASH.*|LD_.*|DYLD_.*|PYTHON.*|JAVA.*|_JAVA.*|JDK.*|SPARK.*"
)
"""Variables that decide which code runs here: only the environment of this process may set them."""
_MEMORY = re.compile(r"(\d+)([kmgt]?)b?", re.IGNORECASE)


class InvalidApplication(Exception):
    """The application cannot be run here; the text says why."""


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidApplication(f"arguments: {message}")


def request_of(body: Mapping[str, Any], name: str, environ: Mapping[str, str]) -> JobRequest:
    """The job that an application describes. Raises: InvalidApplication."""
    spec = body.get("spec") or {}
    file = str(spec.get("mainApplicationFile") or "")
    app = PurePosixPath(urlsplit(file).path)
    known = sorted({*APPS, INDEX_SERVER_APP})
    if spec.get("type") != "Python" or app.suffix != ".py" or app.stem not in known:
        raise InvalidApplication(
            f"{file or 'it'} is not one of Tandem's applications ({', '.join(known)})"
        )
    if app.stem == INDEX_SERVER_APP:
        return _server_of(spec, name, environ)
    parser = _Arguments(add_help=False, allow_abbrev=False)
    parser.add_argument("--location", required=True)
    parser.add_argument("--spec", required=True)
    parser.add_argument("--option", action="append", default=[])
    parser.add_argument("--allowed", action="append", default=[])
    found = parser.parse_args([str(word) for word in spec.get("arguments") or ()])
    if not all("=" in option for option in found.option):
        raise InvalidApplication("arguments: an --option is KEY=VALUE")
    driver = spec.get("driver") or {}
    metadata = body["metadata"]
    labels = metadata.get("labels") or {}
    return JobRequest(
        name=name,
        app=app.stem,
        location=found.location,
        allowed_locations=tuple(found.allowed),
        spec_path=found.spec,
        storage_options=tuple(
            (key, value) for key, value in (option.split("=", 1) for option in found.option)
        ),
        cores=_cores(driver),
        memory_bytes=_memory(str(driver.get("memory") or "")),
        input_bytes=_number((metadata.get("annotations") or {}).get(INPUT_BYTES_ANNOTATION)),
        operation_id=str(labels.get(OPERATION_LABEL, "")),
        attempt=_number(labels.get(ATTEMPT_LABEL)),
        environ=tuple(sorted(environ.items())),
    )


def _server_of(spec: Mapping[str, Any], name: str, environ: Mapping[str, str]) -> JobRequest:
    """An application that serves until it is stopped."""
    parser = _Arguments(add_help=False, allow_abbrev=False)
    parser.add_argument("--request", action="append", required=True)
    found = parser.parse_args([str(word) for word in spec.get("arguments") or ()])
    try:
        config = read(found.request)
    except InvalidSpec as error:
        raise InvalidApplication(str(error)) from error
    return JobRequest(
        name,
        INDEX_SERVER_APP,
        "",
        "",
        request=tuple(found.request),
        # Each executor is a task that does not end.
        cores=max(2, config.executors),
        environ=tuple(sorted(environ.items())),
    )


def endpoint_of(request: JobRequest) -> str:
    """Where an application that serves answers."""
    plain = read(request.request).access.mode == "Plaintext"
    return f"{'grpc' if plain else 'grpc+tls'}://{dict(request.environ)[LISTEN_VARIABLE]}"


def serves(body: Mapping[str, Any]) -> bool:
    """Whether it is an application that serves, not a job."""
    file = str((body.get("spec") or {}).get("mainApplicationFile") or "")
    return PurePosixPath(urlsplit(file).path).stem == INDEX_SERVER_APP


async def mounted(api: Api, body: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Write the Secrets that the driver's pod would mount below `folder`, of a job only the one
    that is renewed, and choose where one that serves listens: variables for its process.

    Raises: InvalidApplication if a Secret cannot be read.
    """
    found: dict[str, str] = {}
    namespace = body["metadata"]["namespace"]
    pod = ((body.get("spec") or {}).get("driver") or {}).get("template") or {}
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        name = str((volume.get("secret") or {}).get("secretName") or "")
        if not name or not (serves(body) or volume.get("name") == CREDENTIALS_VOLUME):
            continue
        try:
            secret: Json = await api.get(ResourcePath("", "v1", "secrets", namespace, name))
        except ApiError as error:
            raise InvalidApplication(f"secret {name}: {error.message}") from error
        # As the API server checks it: a name of one part, and keys without a slash.
        at = folder / name
        at.mkdir(mode=0o700, exist_ok=True)
        for key, value in (secret.get("data") or {}).items():
            file = at / f".{key}.new"
            file.touch(mode=0o600)
            file.write_bytes(base64.b64decode(value))
            file.replace(at / key)  # a process may read it
        found[CREDENTIALS_VARIABLE] = str(at / CREDENTIALS_FILE)
    if not serves(body):
        return found
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {SECRETS_VARIABLE: str(folder), LISTEN_VARIABLE: f"127.0.0.1:{port}"}


async def secrets_of(api: Api, body: Mapping[str, Any]) -> dict[str, str]:
    """The driver's environment: plain variables, and those of the Secrets that it refers to.

    Raises: InvalidApplication if a Secret that is not optional cannot be read.
    """
    namespace = body["metadata"]["namespace"]
    driver = (body.get("spec") or {}).get("driver") or {}
    found: dict[str, str] = {}
    for source in driver.get("envFrom") or ():
        reference = source.get("secretRef")
        if reference is None:
            _log.warning("envFrom: only Secrets are read here", found=sorted(source))
            continue
        path = ResourcePath("", "v1", "secrets", namespace, str(reference.get("name")))
        try:
            secret: Json = await api.get(path)
        except ApiError as error:
            if reference.get("optional"):
                continue
            raise InvalidApplication(f"secret {path.name}: {error.message}") from error
        prefix = source.get("prefix") or ""
        for key, value in (secret.get("data") or {}).items():
            found[prefix + key] = base64.b64decode(value).decode()
    for variable in driver.get("env") or ():
        if "value" in variable:
            found[variable["name"]] = str(variable["value"])
    kept = {key: value for key, value in found.items() if not _DANGEROUS.fullmatch(key)}
    if len(kept) < len(found):
        _log.warning("variables that are not passed on", names=sorted(found.keys() - kept.keys()))
    return kept


def _cores(driver: Mapping[str, Any]) -> int:
    return max(1, min(int(driver.get("cores") or 2), os.cpu_count() or 1))


def _memory(text: str) -> int:
    """A size as in Java, `1024m`, in bytes; 0 if it is invalid."""
    match = _MEMORY.fullmatch(text)
    if match is None:
        return 0
    # Without a unit Spark assumes MiB.
    return int(match[1]) << {"k": 10, "m": 20, "g": 30, "t": 40}.get(match[2].lower(), 20)


def _number(text: object) -> int:
    return int(text) if isinstance(text, str) and text.isdecimal() else 0
