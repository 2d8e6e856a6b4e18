"""Limits on patterns: LIKE, RLIKE and date formats are constants with a bounded run time.

Spark matches all of them with Java's backtracking regular expressions, which a malicious pattern
can keep busy for years on one row. Only patterns whose worst case is polynomial of a small degree
are accepted. Each check returns the problem, or "".
"""

from __future__ import annotations

import re

from tandem.statements.dialect import MAX_PATTERN, MAX_PATTERN_WILDCARDS


def like_problem(pattern: str, escape: str) -> str:
    """The problem of a LIKE or ILIKE pattern (rules of StringUtils.escapeLikeRegex)."""
    if len(pattern) > MAX_PATTERN:
        return f"the pattern is longer than {MAX_PATTERN} characters"
    wildcards = 0
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == escape:
            follower = pattern[at + 1 : at + 2]
            if not follower:
                return f"the pattern ends with the escape character {escape}"
            if follower not in ("_", "%", escape):
                return f"in a pattern only _, % and {escape} may follow {escape}"
            at += 2
            continue
        wildcards += char == "%"
        at += 1
    if wildcards > MAX_PATTERN_WILDCARDS + 1:
        return f"the pattern has more than {MAX_PATTERN_WILDCARDS + 1} wildcards %"
    return ""


_CLASS = re.compile(r"\[\^?(?:[^\[\]\\&]|\\[dwsDWS\\\]\[.\-^/+*?$|(){}])+\]")
_ESCAPED = re.compile(r"\\[dwsDWSbtnr.\\+*?\[\](){}|^$/\-]")
_REPEAT = re.compile(r"\{([0-9]{1,3})(?:,([0-9]{1,3})?)?\}|[*+?]")
_DOT = re.compile(r"\.")
_PLAIN = re.compile(r"[^\\\[\](){}|*+?^$.]")
_MAX_REPEAT = 100
_MAX_GROUPS = 10
_MAX_CHOICES = 1_024


def regex_problem(pattern: str) -> str:
    """The problem of an RLIKE pattern.

    Accepted: characters, classes, `.`, anchors, alternatives, groups that are not repeated (a `?`
    is not a repetition), and few unbounded repetitions. So matching backtracks at most
    polynomially; nested repetitions, back-references and look-around are refused.
    """
    if len(pattern) > MAX_PATTERN:
        return f"the pattern is longer than {MAX_PATTERN} characters"
    unbounded = 0
    choices = 1
    # Alternatives of the open groups, the whole pattern first.
    open_groups = [1]
    groups = 0
    repeatable, after_group = False, False
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if repeat := _REPEAT.match(pattern, at):
            if not repeatable:
                return f"the repetition {repeat[0]} has nothing that it may repeat"
            if after_group and repeat[0] != "?":
                return "a group may not be repeated"
            lowest, highest = int(repeat[1] or 0), int(repeat[2] or repeat[1] or 0)
            if highest > _MAX_REPEAT or (repeat[1] and lowest > highest):
                return f"a repetition counts to {_MAX_REPEAT} at most"
            choices *= 2 if repeat[0] == "?" else 1
            unbounded += repeat[0] != "?" and (repeat[1] is None or "," in repeat[0])
            repeatable = False
            at = repeat.end()
            # Possessive and lazy forms would need separate rules.
            if pattern[at : at + 1] in ("+", "?", "*", "{"):
                return "a repetition may not be repeated"
            continue
        after_group = False
        if char == "(":
            if pattern[at + 1 : at + 2] == "?" and pattern[at + 1 : at + 3] != "?:":
                return "of groups, only (…) and (?:…) are accepted"
            open_groups.append(1)
            groups += 1
            at += 3 if pattern[at + 1 : at + 2] == "?" else 1
            repeatable = False
            continue
        if char == ")":
            if len(open_groups) == 1:
                return "a ) closes nothing"
            choices *= open_groups.pop()
            repeatable, after_group = True, True
            at += 1
            continue
        if char in "|^$":
            open_groups[-1] += char == "|"
            repeatable = False
            at += 1
            continue
        matched = (
            _CLASS.match(pattern, at)
            or _ESCAPED.match(pattern, at)
            or _PLAIN.match(pattern, at)
            or _DOT.match(pattern, at)
        )
        if not matched:
            return f"{pattern[at : at + 2]!r} is not accepted in a pattern"
        repeatable = matched[0] != "\\b"
        at = matched.end()
    if len(open_groups) > 1:
        return "a ( is not closed"
    if choices > _MAX_CHOICES:
        return f"? and alternatives in groups can be combined in more than {_MAX_CHOICES} ways"
    if groups > _MAX_GROUPS:
        return f"the pattern has more than {_MAX_GROUPS} groups"
    if unbounded > MAX_PATTERN_WILDCARDS:
        return f"the pattern has more than {MAX_PATTERN_WILDCARDS} open repetitions"
    return _class_problem(pattern)


def _class_problem(pattern: str) -> str:
    for found in _CLASS.finditer(pattern):
        for low, high in re.findall(r"([A-Za-z0-9])-([A-Za-z0-9])", found[0]):
            if low > high:
                return f"the range {low}-{high} is empty"
    return ""


_FORMAT_PART = re.compile(r"y+|M+|d+|H+|m+|s+|S+|[-/:. ,_]|'T'")
_FORMAT_LENGTHS = {
    "y": (4,), "M": (1, 2), "d": (1, 2), "H": (1, 2), "m": (1, 2), "s": (1, 2),
    "S": (1, 2, 3, 4, 5, 6),
}  # fmt: skip
_MAX_FORMAT = 40


def format_problem(pattern: str) -> str:
    """The problem of a date format: only numbers of fixed meaning, no names or zones."""
    wrong = "a format is made of yyyy MM dd HH mm ss SSSSSS 'T' and - / : . , _ or spaces"
    if not 0 < len(pattern) <= _MAX_FORMAT:
        return wrong
    seen: set[str] = set()
    at = 0
    while at < len(pattern):
        part = _FORMAT_PART.match(pattern, at)
        if part is None:
            return wrong
        letter = part[0][0]
        if letter in _FORMAT_LENGTHS:
            if len(part[0]) not in _FORMAT_LENGTHS[letter]:
                return wrong
            if letter in seen:
                return "each part of a date may stand in a format once"
            seen.add(letter)
        at = part.end()
    return ""
