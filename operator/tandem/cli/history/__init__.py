"""`tandem history`: what was committed to a table, and who replayed what onto what."""
