"""All planted bugs."""

from __future__ import annotations

from mutants.assignment import ASSIGNMENT
from mutants.automatic import AUTOMATIC
from mutants.batches import BATCHES
from mutants.blocks import BLOCKS
from mutants.edits import EDITS
from mutants.engine import ENGINE
from mutants.index import INDEX
from mutants.replaces import REPLACES
from mutants.rules import RULES
from mutants.serving import SERVING
from mutants.spread import SPREAD

MUTANTS = (
    *(*RULES, *REPLACES, *SERVING, *ENGINE, *EDITS, *BATCHES, *BLOCKS, *AUTOMATIC),
    *(*ASSIGNMENT, *INDEX, *SPREAD),
)
