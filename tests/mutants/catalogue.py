"""All planted bugs."""

from __future__ import annotations

from mutants.blocks import BLOCKS
from mutants.engine import ENGINE
from mutants.replaces import REPLACES
from mutants.rules import RULES

MUTANTS = (*RULES, *REPLACES, *ENGINE, *BLOCKS)
