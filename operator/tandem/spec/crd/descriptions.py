"""The descriptions of fields: the docstring under each attribute of a model.

They are read from the source when a definition or a page is generated. Pydantic could read them as
it makes a class, but then each process that imports the models would parse their source.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from functools import cache

from pydantic import BaseModel
from pydantic.fields import FieldInfo


def described_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model, with the docstrings under them as descriptions; those that say their
    description themselves keep it. Raises: OSError for a model without source."""
    texts = {name: text for base in reversed(model.__mro__) for name, text in _docstrings(base)}
    found = {}
    for name, field in model.model_fields.items():
        described = copy.copy(field)
        described.description = field.description or texts.get(name)
        found[name] = described
    return found


@cache
def _docstrings(model: type) -> tuple[tuple[str, str], ...]:
    """Each attribute that a class itself has a docstring for, and that docstring."""
    if not issubclass(model, BaseModel) or model is BaseModel:
        return ()
    [made] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(made, ast.ClassDef)
    found = []
    for attribute, text in zip(made.body, made.body[1:], strict=False):
        match attribute, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(said))),
            ):
                found.append((name, inspect.cleandoc(said)))
    return tuple(found)
