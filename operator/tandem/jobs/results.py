"""What a job writes: its result, its failure, its progress.

Persisted as the formats of `tandem.jobs.formats` are: `rounds/<k>/result.json` is written last, by
put-if-absent, and the engine reads only what it lists.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer
from pydantic.alias_generators import to_camel

from tandem.jobs.formats import Format
from tandem.jobs.formats import SideFileRef as SideFileRef


class OutputFile(Format):
    """A data file that a job wrote. `path` is relative to the root, as the log will name it; `rows`
    are physical; `stats` is Delta's JSON text (tight); `run` is the bin's run, `modified_ms` Unix
    milliseconds. `round` says which round of a statement wrote it. `fresh`: its rows are not in
    `matches`, since a merge inserted them. `deletes` counts the records of a block that delete; it
    is written only if there are some: an engine of an earlier version knows no such field."""

    path: str
    size: int
    rows: int
    modified_ms: int
    stats: str
    partition_values: dict[str, str | None] = Field(default_factory=dict)
    run: int = 0
    round: int = 0
    fresh: bool = False
    deletes: int = 0

    @model_serializer(mode="wrap")
    def _as_before(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = written(self)
        if not self.deletes:
            del content["deletes"]
        return content


_NOT_ALWAYS = (
    "source",
    "rows_outside",
    "chunks_together",
    "copied_in_store",
    "bytes_copied",
    "bytes_encoded",
    "identity",
)
"""Fields that are written only if there is something to say."""


class JobResult(Format):
    """`rounds/<k>/result.json`: the manifest.

    `row_map` (rewrites) is a serialized `tandem.rowmap.rowmap.RowMap` whose inputs and outputs
    are `logged_path`s resp. `path`s. `matches` (statements; of a replace, the rows in its
    scope) is an Arrow IPC file with columns `input: int32` (index into the round's inputs),
    `position: int64`, `output: int32` (index into `outputs`, null for deletes),
    `output_position: int64`, sorted by (input, position). A merge lists its `fresh` outputs
    after all others, and may have both deletes and updates; with columns `source_1` and
    `source_2: int64`, two hashes of the source row that matched (null for none), it lists rows
    that matched and stay, too: their `output` is -2. `rows_read` counts live rows read,
    `rows_written` rows in outputs. `source` is an Arrow IPC file with the columns of a merge's
    source that the merge reads: all rows of a small one, with `SOURCE_IDS` where matches are
    recorded, else one row of least and one of greatest values. Its schema's metadata has the
    source's schema as Spark's JSON (`SOURCE_SCHEMA`) and whether it is whole
    (`SOURCE_IS_WHOLE`: `true`). It is written only if there is one: an engine of an earlier
    version knows no such field. So is `rows_outside`, the rows of a source that a replace left
    out, and `chunks_together`, the number of chunks whose rows share files although the job has
    borders, `copied_in_store`, the bytes of row groups that never left the store, and, of a round
    of edits, `bytes_copied` and `bytes_encoded`, and `identity`, the last value that a row got in
    each identity column (`JobTable.identity`).
    """

    operation_id: str
    attempt: int
    round: int = 0
    outputs: tuple[OutputFile, ...] = ()
    row_map: SideFileRef | None = None
    matches: SideFileRef | None = None
    source: SideFileRef | None = None
    rows_read: int = 0
    rows_written: int = 0
    rows_matched: int = 0
    rows_outside: int = 0
    chunks_together: int = 0
    copied_in_store: int = 0
    bytes_copied: int = 0
    bytes_encoded: int = 0
    identity: dict[str, int] = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _as_before(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = written(self)
        for name in _NOT_ALWAYS:
            if not getattr(self, name):
                content.pop(name, None)
                content.pop(to_camel(name), None)
        return content


class JobFailure(Format):
    """`rounds/<k>/failure.json`: an error the driver could still describe.

    `reason` is a `tandem.errors.Reason`; `transient` says whether another attempt may help.
    """

    operation_id: str
    attempt: int
    round: int = 0
    reason: str
    message: str
    transient: bool = False


class JobProgress(Format):
    """`progress.json`."""

    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int
    stage: str = ""
