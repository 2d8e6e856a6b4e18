"""Copies the row groups of whole files into one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rowgroups.writers import TABLE, footer_of
from tandem.delta.datafiles.joined_files import FloatColumns, JoinedFile
from tandem.delta.datafiles.reader import TableFormat
from tandem.delta.datafiles.writer import WrittenFile
from tandem.storage import Store, open_store
from tandem.storage.store import read_ahead


def joined(
    folder: Path, paths: Sequence[Path], store: Store | None = None, table: TableFormat = TABLE
) -> WrittenFile:
    """A file of the row groups of others, in their folder; or in `store`, where they are, too."""
    store = store or open_store(f"file://{folder}")
    footers = [footer_of(path) for path in paths]
    file = JoinedFile(store, "", table, footers[0])
    for path, footer in zip(paths, footers, strict=True):
        with (
            store.open_input(path.name) as source,
            FloatColumns(store, path.name, table) as floats,
        ):
            read_ahead(source, 1)
            for number, group in enumerate(footer.groups):
                file.copy(source, footer, group, floats.summaries(number))
    return file.close(None)
