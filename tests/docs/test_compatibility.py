"""`docs/compatibility.md` says what the last whole run of the W matrix recorded."""

from __future__ import annotations

from compatibility_page import ROOT, compatibility
from support.matrix.record import NOTE


def test_page_is_generated_from_the_record() -> None:
    assert (ROOT / "docs" / "compatibility.md").read_text() == compatibility(NOTE)
