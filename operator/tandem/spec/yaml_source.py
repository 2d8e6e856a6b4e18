"""Reads YAML into plain data together with the line of every value.

Stricter than YAML where YAML surprises: a key that occurs twice is an error, and scalars are
those of YAML 1.2's core schema, so that `on:` is a key, `01:00` is text and `2013-02-01` is
text. What kubectl, which reads YAML 1.1, takes for another number (`010`, `1_000`) is refused
unless it is in quotes: a file means the same to both, or is an error to one. So are `yes`, `n`
and the like within a `sparkTemplate`; elsewhere they are text, and the API server refuses the
booleans that kubectl makes of them. Never constructs
anything but dictionaries, lists, text, numbers, booleans and nulls; the number of values after
expanding aliases is limited. Knows nothing of resources.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from tandem.errors import InvalidSpec
from tandem.spec.problems import Document, FieldPath

_MAX_VALUES: Final = 100_000
_MAX_DEPTH: Final = 64

# What the composer gives to untagged values, and their explicit spellings.
_TAGS: Final = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("null", "bool", "int", "float", "str", "timestamp", "merge", "value", "seq", "map")
)

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")

# What is text to YAML 1.2 and a boolean to kubectl's YAML 1.1.
_WORD = re.compile(r"y|Y|yes|Yes|YES|n|N|no|No|NO|on|On|ON|off|Off|OFF")
_OPAQUE: Final = "sparkTemplate"
"""Only there no schema refuses a boolean in the place of a text."""
# What is text or a number to YAML 1.2, and another number to kubectl.
_AMBIGUOUS = re.compile(
    r"[-+]?0[0-9_]+|[-+]?0b[01_]+|[-+]0[xo][0-9a-fA-F]+|[-+]?0x[0-9a-fA-F_]*_[0-9a-fA-F_]*"
    r"|[-+]?[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
# What kubectl prints differently when it makes a key of it.
_AMBIGUOUS_KEY = re.compile(
    r"~|null|Null|NULL||True|TRUE|False|FALSE|[-+]?0[xo].*|\+.*"
    r"|[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)|[-+]?[0-9.]+[eE].*"
)


class _Loader(yaml.SafeLoader):
    """Composes nodes only. Which plain scalar is what is decided here, not by PyYAML's resolver."""

    def compose_scalar_node(self, anchor: dict[Any, yaml.Node]) -> yaml.ScalarNode:
        tag = self.peek_event().tag  # type: ignore[no-untyped-call]
        node = super().compose_scalar_node(anchor)
        if tag == "tag:yaml.org,2002:str":
            node.style = "'"  # !!str is as good as quotes
        return node


def documents(text: str, source: str) -> Iterator[Document]:
    """The documents of a file in order, without empty ones.

    Args:
        text: the file's content.
        source: the file's name, for messages.

    Raises:
        InvalidSpec: not YAML, a duplicate key, or too many or too deeply nested values.
    """
    budget = [_MAX_VALUES]
    try:
        for node in yaml.compose_all(text, Loader=_Loader):
            document = Document(source)
            document.data = _build(node, (), document, budget)
            if document.data is not None:
                yield document
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        raise InvalidSpec(
            "not valid YAML",
            resource=place,
            found=" ".join(str(getattr(error, "problem", None) or error).split()),
            expected="YAML documents, each of them a resource",
            remedy="Fix the file at this place",
        ) from error
    except RecursionError as error:
        raise InvalidSpec(
            "values are nested too deeply",
            resource=source,
            found=f"more than {_MAX_DEPTH} levels",
            expected=f"at most {_MAX_DEPTH} levels",
            remedy="No field of a resource needs so many",
        ) from error


def _build(node: yaml.Node | None, path: FieldPath, document: Document, budget: list[int]) -> Any:
    if node is None:
        return None
    budget[0] -= 1
    if budget[0] < 0 or len(path) > _MAX_DEPTH:
        # Aliases that refer to aliases would otherwise grow without bound, and an alias to
        # itself without end.
        raise InvalidSpec(
            "too many values, or nested too deeply",
            found="more, once aliases are followed",
            resource=document.source,
            expected=f"at most {_MAX_VALUES} values in a file and {_MAX_DEPTH} levels",
            remedy="Look for anchors and aliases that multiply",
        )
    place = f"{document.source}:{node.start_mark.line + 1}"
    document.lines[path] = place
    if node.tag not in _TAGS:
        raise InvalidSpec(
            "tags are not supported",
            resource=place,
            found=node.tag,
            expected="plain values",
            remedy="Remove the tag",
        )
    if isinstance(node, yaml.ScalarNode):
        if node.style is None:
            _unambiguous(node, place, _AMBIGUOUS)
            if _OPAQUE in path:
                _unambiguous(node, place, _WORD)
        return _scalar(node)
    if isinstance(node, yaml.SequenceNode):
        return [
            _build(item, (*path, index), document, budget) for index, item in enumerate(node.value)
        ]
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, document, budget)
    raise AssertionError(f"PyYAML composed {type(node).__name__}")


def _mapping(
    node: yaml.MappingNode, path: FieldPath, document: Document, budget: list[int]
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = f"{document.source}:{key_node.start_mark.line + 1}"
        if not isinstance(key_node, yaml.ScalarNode):
            raise InvalidSpec(
                "a key must be text",
                resource=line,
                found=f"a {key_node.tag.rsplit(':', 1)[-1]}",
                expected="text",
                remedy="Write the key as plain text",
            )
        key = str(key_node.value)
        if key_node.style is None:
            _unambiguous(key_node, line, _AMBIGUOUS)
            _unambiguous(key_node, line, _AMBIGUOUS_KEY)
            if _OPAQUE in path:
                _unambiguous(key_node, line, _WORD)
        if key == "<<" and key_node.style is None:
            raise InvalidSpec(
                "merge keys (<<) are not supported",
                resource=line,
                found="<<",
                expected="fields",
                remedy="Write the fields out",
            )
        if key in result:
            raise InvalidSpec(
                f"the key {key!r} occurs twice",
                resource=line,
                found="a second value",
                expected="one value for each key",
                remedy=f"Remove one; the first is at {document.lines[(*path, key)]}",
            )
        result[key] = _build(value_node, (*path, key), document, budget)
        document.lines[(*path, key)] = line
    return result


def _unambiguous(node: yaml.ScalarNode, line: str, ambiguous: re.Pattern[str]) -> None:
    text = str(node.value)
    if ambiguous.fullmatch(text):
        raise InvalidSpec(
            "means one thing to kubectl, which reads YAML 1.1, and another to YAML 1.2",
            resource=line,
            found=text or "nothing",
            expected=f'text in quotes ("{text}"), true or false, or a plain number',
            remedy="Write what you mean",
        )


def _scalar(node: yaml.ScalarNode) -> Any:
    text: str = node.value
    if node.style is not None:  # quoted, literal or folded
        return text
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else text
    return text
