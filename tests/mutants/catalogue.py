"""All planted bugs."""

from __future__ import annotations

from mutants.blocks import BLOCKS
from mutants.engine import ENGINE
from mutants.rules import RULES

MUTANTS = (*RULES, *ENGINE, *BLOCKS)
