"""A `JobRunner` without Spark: the same formats, files and checks, a few milliseconds a job.

Rewrites run the very functions that Spark's tasks run; statements, merges and ingests are done by
DuckDB and written by our own writer, as real Parquet with real stats. Everything happens in the
calling thread, so that a process which is killed takes its jobs with it, as it does in life.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from support.jobs import quick_merge
from support.jobs.quick_merge import FATE, STAYS, sql
from tandem.delta.datafiles.reader import DataFileReader, arrow_schema
from tandem.delta.datafiles.writer import ParquetDataWriter, WrittenFile
from tandem.errors import InvalidSpec, TandemError
from tandem.jobs.formats import (
    IngestJob,
    InputFile,
    LogMergeJob,
    MergeJob,
    ReplaceJob,
    RewriteJob,
    StatementJob,
    StitchJob,
    UpsertJob,
)
from tandem.jobs.results import JobResult, OutputFile
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.mergelog.blocks import converted
from tandem.rowmap.binary_format import to_bytes
from tandem.rowmap.rowmap import merge
from tandem.spark.jobs import ingest, local_statement, log_merge, stitch, upsert
from tandem.spark.jobs.bins import BinResult, rewrite_bin, row_map_of
from tandem.spark.jobs.copied_bins import decoded
from tandem.spark.jobs.edits import edit_round, maker_of
from tandem.spark.jobs.local_statement import in_tasks
from tandem.spark.jobs.sorted_bins import sort_bin
from tandem.spark.jobs.statement import serve
from tandem.spark.runtime import control
from tandem.spark.runtime.control import (
    Control,
    job_table_format,
    origin_of,
    output_file,
    to_file,
)
from tandem.spark.runtime.frames import dead_rows
from tandem.spark.runtime.row_files import InputSplit, RowFiles, RowsWork, TaskRows, joined
from tandem.spark.runtime.written_facts import store_facts
from tandem.statements.local.rules import filled

Hook = Callable[[str], None]
"""Receives where a job is: `written` (its files, nothing else), `published` (its result)."""


def unwatched(_where: str) -> None:
    """A hook that does nothing."""


@dataclass
class QuickJobs:
    """`started` names all jobs that were asked for, in order. `copies`: a merge copies its source,
    as the job on Spark does, so that the engine can evaluate small rounds of it."""

    hook: Hook = unwatched
    started: list[JobRequest] = field(default_factory=list)
    _open: dict[str, Control] = field(default_factory=dict)
    _codes: dict[str, int] = field(default_factory=dict)
    _rounds: dict[str, int] = field(default_factory=dict)
    copies: bool = False

    def start(self, request: JobRequest) -> None:
        if request.name in self._codes:
            return
        self.started.append(request)
        opened = control.open_job(
            request.location,
            request.spec_path,
            dict(request.storage_options),
            request.allowed_locations,
        )
        self._open[request.name] = opened
        self._rounds[request.name] = 1
        self._codes[request.name] = control.answer(self.work, opened)

    def status(self, name: str) -> JobStatus:
        if name not in self._codes:
            return JobStatus(JobPhase.UNKNOWN, "not started by this runner")
        if self._codes[name]:
            return JobStatus(JobPhase.FAILED, f"exit code {self._codes[name]}")
        opened = self._open[name]
        job = opened.spec.job
        if not job.serves_rounds or opened.is_done():
            return JobStatus(JobPhase.ENDED)
        round_ = self._rounds[name]
        request = opened.request(round_)
        if request is not None:
            try:
                if request.edits is not None:
                    edit_round(opened, request, maker_of(opened))
                else:
                    self.round(opened, request.inputs, round_, part=request.part)
            except (TandemError, duckdb.Error) as error:
                # As a driver does, which lives on: the engine decides what it means.
                opened.fail(control.translate(error), round_)
            self._rounds[name] = round_ + 1
        return JobStatus(JobPhase.RUNNING)

    def stop(self, name: str) -> None:
        """Nothing runs between two calls."""

    # The work

    def work(self, opened: Control) -> None:
        """Do a job, or the first round of one, and publish its result."""
        job = opened.spec.job
        if isinstance(job, RewriteJob):
            self.rewrite(opened, job)
        elif isinstance(job, IngestJob | ReplaceJob):
            self.ingest(opened, job)
        elif isinstance(job, StitchJob):
            runs = [stitch.stitch_run(opened.store, opened.spec, n) for n in range(len(job.runs))]
            self.hook("written")
            stitch.publish(opened, runs)
            self.hook("published")
        elif isinstance(job, LogMergeJob):
            won = log_merge.log_winners(opened.store, opened.spec)
            matches = [
                (n, log_merge.match_file(opened.store, opened.spec, n, won.overlay))
                for n in range(len(job.inputs))
            ]
            self.hook("written")
            log_merge.publish(opened, won, matches)
            self.hook("published")
        elif isinstance(job, UpsertJob):
            self.upsert(opened, job)
        else:
            self.round(opened, job.inputs, 0)

    def upsert(self, opened: Control, job: UpsertJob) -> None:
        source = pq.read_table(unquote(urlsplit(job.source_location).path))
        schema = job_table_format(job.blocks).schema
        columns = {
            name: converted(source[name], schema[name])
            for name in upsert.columns_of(job)
            if name in source.column_names
        }
        rows = pa.table(columns).sort_by([(key, "ascending") for key in job.keys])
        files = upsert.BlockFiles(opened.store, upsert.block_work(opened, job))
        # Keys that are in two batches, too.
        written = files.write_blocks(rows.to_batches(max_chunksize=3))
        self.hook("written")
        upsert.publish(opened, upsert.outputs_of(written), written.rows, written.repeated)
        self.hook("published")

    def rewrite(self, opened: Control, job: RewriteJob) -> None:
        spec = opened.spec
        results = [_rewritten(opened, job, n) for n in range(len(job.bins))]
        self.hook("written")
        maps = [row_map_of(spec, job, r) for r in results]
        store_facts(opened.store, spec.table.table_id, (f for r in results for f in r.files))
        opened.publish(
            JobResult(
                operation_id=spec.operation_id,
                attempt=spec.attempt,
                outputs=tuple(
                    output_file(file, run=job.bins[r.index].run)
                    for r in results
                    for file in r.files
                ),
                row_map=opened.side_file(0, "rowmap", to_bytes(merge(maps))),
                rows_read=sum(r.rows_read for r in results),
                rows_written=sum(file.rows for r in results for file in r.files),
                copied_in_store=sum(r.copied_in_store for r in results),
            )
        )
        self.hook("published")

    def round(
        self,
        opened: Control,
        inputs: Sequence[InputFile],
        round_: int,
        *,
        part: bool = False,
    ) -> None:
        job = opened.spec.job
        if isinstance(job, StatementJob):
            self.evaluate(opened, job, inputs, round_)
        elif isinstance(job, MergeJob):
            self.merge(opened, job, inputs, round_, part=part)
        else:
            self.publish(opened, _empty(opened, round_), inputs)

    def publish(self, opened: Control, result: JobResult, inputs: Sequence[InputFile]) -> None:
        """Publish a result of a replace, with the rows of files that are in its scope."""
        if inputs:
            found = [ingest.rows_of(opened.store, opened.spec, file) for file in inputs]
            result = ingest.with_matches(opened, result, inputs, found)
        opened.publish(result)
        self.hook("published")

    def merge(
        self,
        opened: Control,
        job: MergeJob,
        inputs: Sequence[InputFile],
        round_: int,
        *,
        part: bool,
    ) -> None:
        spec = opened.spec
        rows = _rows(opened, inputs)
        found = quick_merge.merged(opened, job, rows, part=part)
        matched = found.filter(pc.not_equal(found.column(FATE), "Insert"))
        updated = _bare(found.filter(pc.equal(found.column(FATE), "Update")))
        inserted = _bare(found.filter(pc.equal(found.column(FATE), "Insert")))
        files = [
            output_file(file, round_=round_).model_copy(update={"fresh": fresh})
            for written, fresh in ((updated, False), (inserted, True))
            for file in (_write(opened, written, job.target_file_size) if written.num_rows else ())
        ]
        self.hook("written")
        acted = pc.sum(pc.not_equal(matched.column(FATE), STAYS)).as_py() or 0
        to_update = _matches(matched, pc.equal(matched.column(FATE), "Update"))
        answer = to_file(quick_merge.with_record(to_update, matched))
        copy = quick_merge.copied(opened, job) if self.copies and round_ == 0 else None
        opened.publish(
            JobResult(
                operation_id=spec.operation_id,
                attempt=spec.attempt,
                round=round_,
                outputs=tuple(files),
                matches=opened.side_file(round_, "matches", answer),
                source=copy,
                rows_read=rows.num_rows,
                rows_written=sum(file.rows for file in files),
                rows_matched=acted,
            )
        )
        self.hook("published")

    def evaluate(
        self, opened: Control, job: StatementJob, inputs: Sequence[InputFile], round_: int
    ) -> None:
        spec = opened.spec
        if spec.table.partition_columns and job.set:
            outputs_, answer = _in_partitions(opened, inputs, round_)
            opened.publish(
                JobResult(
                    operation_id=spec.operation_id,
                    attempt=spec.attempt,
                    round=round_,
                    outputs=outputs_,
                    matches=opened.side_file(round_, "matches", to_file(answer)),
                    rows_written=sum(output.rows for output in outputs_),
                    rows_matched=answer.num_rows,
                )
            )
            self.hook("published")
            return
        rows = _rows(opened, inputs)
        found = _select(rows, job.where, job.set)
        outputs: tuple[WrittenFile, ...] = ()
        if job.set and found.num_rows:
            outputs = _write(opened, _bare(found), job.target_file_size)
        self.hook("written")
        answer = to_file(_matches(found, pa.repeat(bool(job.set), found.num_rows)))
        opened.publish(
            JobResult(
                operation_id=spec.operation_id,
                attempt=spec.attempt,
                round=round_,
                outputs=tuple(output_file(file, round_=round_) for file in outputs),
                matches=opened.side_file(round_, "matches", answer),
                rows_read=rows.num_rows,
                rows_written=sum(file.rows for file in outputs),
                rows_matched=found.num_rows,
            )
        )
        self.hook("published")

    def ingest(self, opened: Control, job: IngestJob | ReplaceJob) -> None:
        spec = opened.spec
        if isinstance(job, ReplaceJob) and not job.has_source:
            self.publish(opened, _empty(opened, 0), job.inputs)
            return
        source = pq.read_table(unquote(urlsplit(job.source_location).path))
        own = arrow_schema(opened.table.without_row_ids)
        given = source.column_names
        source = filled(_aligned(source, own, job.source_location), spec.table.schema_string, given)
        together = 0
        if job.borders is None:
            outputs = _write(opened, source, job.target_file_size)
        else:
            work = RowsWork(
                table=spec.table,
                data_prefix=spec.data_prefix,
                target_file_size=job.target_file_size,
                borders=job.borders,
            )
            files = RowFiles(opened.store, work, tuple(source.schema.names))
            written = files.write_all(source.to_batches())
            outputs, together = written.files, len(written.together)
        self.hook("written")
        result = JobResult(
            operation_id=spec.operation_id,
            attempt=spec.attempt,
            outputs=tuple(map(output_file, outputs)),
            rows_read=source.num_rows,
            rows_written=source.num_rows,
            chunks_together=together,
        )
        self.publish(opened, result, job.inputs if isinstance(job, ReplaceJob) else ())


def _rewritten(opened: Control, job: RewriteJob, number: int) -> BinResult:
    if job.layout is None:
        return rewrite_bin(opened.store, opened.spec, number)
    found = sort_bin(opened.store, opened.spec, number)
    assert isinstance(found, BinResult)
    return found


def _empty(opened: Control, round_: int) -> JobResult:
    spec = opened.spec
    return JobResult(operation_id=spec.operation_id, attempt=spec.attempt, round=round_)


def drive(opened: Control, stop: threading.Event) -> None:
    """Do a job as a driver does: after its work it serves rounds, until the engine ends the job or
    `stop` is set."""
    jobs = QuickJobs(copies=True)
    jobs.work(opened)
    if not opened.spec.job.serves_rounds:
        return

    def round_(inputs: Sequence[InputFile], number: int) -> None:
        request = opened.request(number)
        part = request is not None and request.part
        jobs.round(opened, inputs, number, part=part)

    serve(opened, round_, stop)


def _rows(opened: Control, inputs: Sequence[InputFile]) -> pa.Table:
    """All live rows, with the number of their input and their position in it."""
    schema = arrow_schema(opened.table)
    hidden = [("__position", pa.int64()), ("__input", pa.int32())]
    parts = [pa.schema([*schema, *(pa.field(*h) for h in hidden)]).empty_table()]
    for number, file in enumerate(inputs):
        path = decoded(file)
        values = file.partition_values
        origin = origin_of(file, opened.table)
        with DataFileReader(
            opened.store, path, opened.table, partition_values=values, origin=origin
        ) as reader:
            dead = dead_rows(file)
            batches = list(reader.batches(dead=dead, positions="__position", use_threads=False))
        for batch in batches:
            inputs_column = pa.array([number] * batch.num_rows, pa.int32())
            part = pa.Table.from_batches([batch]).append_column("__input", inputs_column)
            parts.append(part.cast(parts[0].schema))
    return pa.concat_tables(parts)


def _select(rows: pa.Table, where: str, set_: Mapping[str, str]) -> pa.Table:
    chosen = ", ".join(
        f"{sql(set_[name])} AS {_quoted(name)}" if name in set_ else _quoted(name)
        for name in rows.schema.names
    )
    with duckdb.connect() as engine:
        engine.execute("SET threads = 1")
        engine.register("rows", rows)
        found = engine.sql(
            f"SELECT {chosen} FROM rows WHERE {sql(where)} ORDER BY __input, __position"
        ).to_arrow_table()
        return found.cast(rows.schema)


def _aligned(source: pa.Table, schema: pa.Schema, location: str) -> pa.Table:
    """As `spark.sources.casts` does. Raises: InvalidSpec."""
    if extra := sorted(set(source.column_names) - set(schema.names)):
        raise InvalidSpec(
            "the source has columns that the table lacks",
            field=f"spec.source: {location}",
            found=", ".join(extra),
            expected=", ".join(schema.names),
            remedy="Leave them out",
        )
    return pa.table(
        {
            column.name: source[column.name]
            if column.name in source.column_names
            else pa.nulls(source.num_rows, column.type)
            for column in schema
        }
    ).cast(schema)


def _write(opened: Control, rows: pa.Table, target_size: int) -> tuple[WrittenFile, ...]:
    """New rows: those that have an id keep it, and have no version."""
    table = opened.table
    if not {*table.row_ids} <= {*rows.schema.names}:
        table = table.without_row_ids
    for version in table.row_ids[1:]:
        at = rows.schema.get_field_index(version)
        rows = rows.set_column(at, version, pa.nulls(rows.num_rows, pa.int64()))
    writer = ParquetDataWriter(
        opened.store, opened.spec.data_prefix, table, target_size=target_size
    )
    with writer:
        for batch in rows.to_batches():
            writer.write(batch)
    return writer.files


def _in_partitions(
    opened: Control, inputs: Sequence[InputFile], round_: int
) -> tuple[tuple[OutputFile, ...], pa.Table]:
    """The files that an update writes in several partitions, and its matches, as Spark's tasks
    find them."""
    spec = opened.spec

    def task(number: int, splits: Sequence[InputSplit]) -> TaskRows:
        return local_statement.find_rows(opened.store, spec, inputs, number, splits)

    found = in_tasks(opened, None, inputs, round_, "Evaluating", task)
    store_facts(opened.store, spec.table.table_id, (file for each in found for file in each.files))
    return joined(found, round_)


def _bare(rows: pa.Table) -> pa.Table:
    """Without the columns that only we know."""
    return rows.drop_columns([name for name in rows.schema.names if name.startswith("__")])


def _matches(found: pa.Table, updated: pa.Array) -> pa.Table:
    """`updated`: which of the rows are rewritten; others are deleted. One output at most: the
    tables of these tests are far below the target size."""
    is_updated = np.asarray(updated, dtype=bool)
    places = pa.array(np.cumsum(is_updated) - 1, pa.int64(), mask=~is_updated)
    outputs = pa.array(np.zeros(len(is_updated)), pa.int32(), mask=~is_updated)
    return pa.table(
        {
            "input": found.column("__input").cast(pa.int32()),
            "position": found.column("__position").cast(pa.int64()),
            "output": outputs,
            "output_position": places,
        }
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
