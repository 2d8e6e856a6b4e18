"""All planted bugs."""

from __future__ import annotations

from mutants.engine import ENGINE
from mutants.rules import RULES

MUTANTS = (*RULES, *ENGINE)
