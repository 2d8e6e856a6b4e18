"""The table of `docs/features.md`, from `tandem.delta.protocol`."""

from __future__ import annotations

from tandem.delta.protocol import FEATURES, OF_LOG, OperationKind


def features_table() -> str:
    """`FEATURES` in Markdown; those that are treated alike, for one reason, share a row."""
    kinds = [kind for kind in OperationKind if kind not in OF_LOG]
    lines = [
        "| feature | " + " | ".join(k.value.lower() for k in kinds) + " | why, when in use |",
        "|---|" + "---|" * (len(kinds) + 1),
    ]
    names: dict[str, list[str]] = {}
    for feature in FEATURES.values():
        cells = ["no" if kind in feature.refused else "yes" for kind in kinds]
        names.setdefault(" | ".join([*cells, feature.why]), []).append(f"`{feature.name}`")
    lines += [f"| {', '.join(alike)} | {cells} |" for cells, alike in names.items()]
    return "\n".join(lines) + "\n"
