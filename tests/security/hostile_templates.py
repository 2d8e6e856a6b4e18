"""The pieces of SparkApplications in `hostile_templates.yaml`, and how to write others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]

DRIVER = "spark-kubernetes-driver"
_PIECES: Json = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
SAFE: Json = _PIECES["safe"]


def spec(**fields: Any) -> Json:
    return {"spec": fields}


def conf(key: str, value: str = "x") -> Json:
    return spec(sparkConf={key: value})


def driver(**fields: Any) -> Json:
    return spec(driver=fields)


def pod(**fields: Any) -> Json:
    return driver(template={"spec": fields})


def sidecar(**fields: Any) -> Json:
    return {"name": "beside", "image": "i", **fields}


def _refused(name: str) -> dict[str, tuple[Json, str]]:
    """Case → piece, and the path by which it is refused."""
    return {case: (piece, piece.pop("refused")) for case, piece in _PIECES[name].items()}


HOSTILE = {
    **_refused("hostile"),
    **{key: (conf(key), f"spec.sparkConf.{key}") for key in _PIECES["hostile_settings"]},
}
OURS = _refused("ours")
SPLIT = {
    **{f"a key {key!r}": (conf(key), "spec.sparkConf.") for key in _PIECES["split_settings"]},
    **_refused("split"),
}
HARMLESS: dict[str, Json] = _PIECES["harmless"]
