"""`docs/compatibility.md` says what the last whole run of the W matrix recorded."""

from __future__ import annotations

from compatibility_page import RECORD, ROOT, compatibility
from matrix_outcomes import NOTE


def test_page_is_of_the_record() -> None:
    """Before the first whole run there is no record, and the page is written by hand."""
    page = (ROOT / "docs" / "compatibility.md").read_text()
    assert page == compatibility(NOTE) if RECORD.exists() else NOTE not in page
