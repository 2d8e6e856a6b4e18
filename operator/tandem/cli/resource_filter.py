"""`--only KIND/NAME`: which of the resources in the files take part. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.errors import InvalidSpec, ReferenceNotFound
from tandem.spec import AnyKind, Operation


def select(resources: Sequence[AnyKind], only: Sequence[str]) -> list[AnyKind]:
    """The chosen resources and the tables that they refer to, in their order.

    Dependencies of a chosen operation are neither run nor waited for unless they are chosen, too.

    Raises:
        InvalidSpec: not of the form KIND/NAME.
        ReferenceNotFound: there is no such resource.
    """
    if not only:
        return list(resources)
    wanted = {_parse(text) for text in only}
    for kind, name in sorted(wanted):
        if not any((resource.kind_name, resource.name) == (kind, name) for resource in resources):
            raise ReferenceNotFound(
                "no such resource in the files",
                resource="--only",
                found=f"{kind}/{name}",
                expected="one of " + ", ".join(resource.id for resource in resources),
            )
    chosen = {each.key for each in resources if (each.kind_name, each.name) in wanted}
    for resource in resources:
        if resource.key in chosen and isinstance(resource, Operation):
            chosen.add(("LakeTable", resource.namespace, resource.spec.table_ref.name))
    return [_without_others(resource, chosen) for resource in resources if resource.key in chosen]


def _parse(text: str) -> tuple[str, str]:
    kind, slash, name = text.partition("/")
    if not (kind and slash and name):
        raise InvalidSpec("not a resource", resource="--only", found=text, expected="KIND/NAME")
    return kind, name


def _without_others(resource: AnyKind, chosen: set[tuple[str, str, str]]) -> AnyKind:
    if not isinstance(resource, Operation) or not resource.spec.depends_on:
        return resource
    kept = tuple(
        dependency
        for dependency in resource.spec.depends_on
        if (dependency.kind, resource.namespace, dependency.name) in chosen
    )
    spec = resource.spec.model_copy(update={"depends_on": kept})
    return resource.model_copy(update={"spec": spec})
