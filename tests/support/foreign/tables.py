"""Foreign tables, written by hand as log and Parquet: what other writers may leave behind.

Each is small and odd in one way. `TABLES` says what a scan makes of it: a number of rows, or the
reason of the refusal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from support.lake.delta_log import checkpoint_bytes, commit_name, info, lines, metadata, protocol
from support.lake.vectors import encode_inline
from tandem.delta.log.codec import encode_deletion_vector
from tandem.errors import Reason

Json = dict[str, Any]
IDS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
BEYOND = 4_000_000
"""Days after 1970 of a date in the year 12921."""


@dataclass(frozen=True)
class Foreign:
    """`make` writes a table at a path that is not there yet; `rows` None: any."""

    make: Callable[[Path], None]
    rows: int | None = None
    reason: Reason | None = None


def column(name: str, type_: Any = "long", **more: Any) -> Json:
    return {"name": name, "type": type_, "nullable": True, "metadata": more}


def struct(*fields: Json) -> Json:
    return {"type": "struct", "fields": list(fields)}


def broken_texts(rows: int) -> pa.Array:
    """Texts that are not UTF-8: the byte FF."""
    offsets = pa.array(range(rows + 1), pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.string(), rows, [None, offsets, pa.py_buffer(b"\xff" * rows)])


def write(
    root: Path,
    *columns: Json,
    rows: pa.Table | None = IDS,
    features: Sequence[str] = (),
    writer_features: Sequence[str] = (),
    properties: Mapping[str, Any] | None = None,
    partition_by: Sequence[str] = (),
    partition_values: Mapping[str, str | None] | None = None,
    folder: str = "",
    **add: Any,
) -> Json:
    """A table of one commit and at most one file; the add action."""
    (root / "_delta_log").mkdir(parents=True)
    upgraded = features or writer_features
    version = (
        protocol(3, 7, readerFeatures=features, writerFeatures=[*features, *writer_features])
        if upgraded
        else protocol()
    )
    schema = json.dumps(struct(*(columns or (column("id"),))))
    actions = [
        info(),
        version,
        metadata(properties, schemaString=schema, partitionColumns=list(partition_by)),
    ]
    body: Json = {}
    if rows is not None:
        path = root / folder / "part-0.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path)
        body = {
            "path": quote(str(path.relative_to(root))),
            "partitionValues": dict(partition_values or {}),
            "size": path.stat().st_size,
            "modificationTime": 1_700_000_000_000,
            "dataChange": True,
            "stats": json.dumps({"numRecords": rows.num_rows}),
        } | add
        actions.append({"add": body})
    (root / commit_name(0)).write_bytes(lines(actions))
    return body


def typed(type_: Any, *features: str) -> Callable[[Path], None]:
    """Columns `id` and `x` of this type; data files have no `x`."""
    return lambda root: (write(root, column("id"), column("x", type_), features=features), None)[1]


def with_(**settings: Any) -> Callable[[Path], None]:
    return lambda root: (write(root, **settings), None)[1]


def holding(*columns: Json, **arrays: pa.Array) -> Callable[[Path], None]:
    return lambda root: (write(root, *columns, rows=pa.table(arrays)), None)[1]


def raw(*commits: bytes) -> Callable[[Path], None]:
    """Nothing but these commits."""

    def make(root: Path) -> None:
        (root / "_delta_log").mkdir(parents=True)
        for version, data in enumerate(commits):
            (root / commit_name(version)).write_bytes(data)

    return make


def begun(*actions: Json, config: Any = None, **fields: Any) -> Callable[[Path], None]:
    return raw(lines([info(), protocol(), metadata(config, **fields), *actions]))


def damaged(change: Callable[[Path], Any]) -> Callable[[Path], None]:
    """A sound table, then this."""

    def make(root: Path) -> None:
        write(root)
        change(root)

    return make


# One by one


def nothing(root: Path) -> None:
    root.mkdir()


def no_table(root: Path) -> None:
    root.mkdir()
    pq.write_table(IDS, root / "part-0.parquet")


def a_file(root: Path) -> None:
    root.write_text("not a table")


def a_file_as_log(root: Path) -> None:
    root.mkdir()
    (root / "_delta_log").write_text("not a log")


def partitions(root: Path) -> None:
    """A text that needs quotes everywhere, and a folder named after it."""
    text = "a b%20/ü.'\"\n`=\U0001f600"
    where = "p=" + quote(text, safe="")
    columns = (column("id"), column("p", "string"))
    write(root, *columns, partition_by=["p"], partition_values={"p": text}, folder=where)


def spelled(path: str) -> Callable[[Path], None]:
    """Its file by another of its names; `{root}` stands for the table's path."""
    return lambda root: (write(root, path=path.format(root=root)), None)[1]


def colon(root: Path) -> None:
    write(root, path="aa%3Abb.parquet")
    (root / "part-0.parquet").rename(root / "aa:bb.parquet")


def dates(root: Path) -> None:
    days = pa.array([0, BEYOND, -BEYOND], pa.date32())
    times = pa.array([0, 2**62, -(2**62)], pa.timestamp("us", tz="UTC"))
    nested = pa.StructArray.from_arrays([days], ["d"])
    write(
        root,
        column("d", "date"),
        column("t", "timestamp"),
        column("s", struct(column("d", "date"))),
        column("p", "date"),
        rows=pa.table({"d": days, "t": times, "s": nested}),
        partition_by=["p"],
        partition_values={"p": "+12921-08-18"},
        stats=json.dumps(
            {"numRecords": 3, "minValues": {"d": "-8982-05-17"}, "maxValues": {"d": "+12921-08-18"}}
        ),
    )


def dotted(root: Path) -> None:
    names = ["a", "a.b", "a.b.c", ".", "a.", ".a", "`a.b`", "a`b"]
    arrays: list[Any] = [pa.array([{"b": 1, "b.c": 2}]), *(pa.array([n]) for n in range(10, 17))]
    write(
        root,
        column("a", struct(column("b"), column("b.c"))),
        *(column(name) for name in names[1:]),
        rows=pa.table(dict(zip(names, arrays, strict=True))),
    )


def mapped(mode: str) -> Callable[[Path], None]:
    ids = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"}
    field = pa.field("col-1", pa.int64(), metadata={"PARQUET:field_id": "1"})
    rows = pa.table([pa.array([1, 2, 3], pa.int64())], schema=pa.schema([field]))
    properties = {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "1"}
    named = column("a.b `c`,\n;{}()=", **ids)
    return lambda root: (
        write(root, named, rows=rows, features=["columnMapping"], properties=properties),
        None,
    )[1]


def deep(root: Path) -> None:
    type_: Any = "long"
    values = pa.array([1, 2, 3], pa.int64())
    for _ in range(60):
        type_ = struct(column("x", type_))
        values = pa.StructArray.from_arrays([values], ["x"])
    write(root, column("x", type_), rows=pa.table({"x": values}))


def wide(root: Path) -> None:
    names = [f"c{n}" for n in range(2_000)]
    write(root, *map(column, names), rows=pa.table({name: [1] for name in names}))


def vector(root: Path) -> None:
    inline = encode_deletion_vector(encode_inline(BitMap64([1])))
    write(root, features=["deletionVectors"], deletionVector=inline)


def broken_vector(root: Path) -> None:
    inline = encode_deletion_vector(encode_inline(BitMap64([1]))) | {"pathOrInlineDv": "!?"}
    write(root, features=["deletionVectors"], deletionVector=inline)


def sidecars(root: Path) -> None:
    """A V2 checkpoint as JSON, its files in a sidecar, and no commit before it."""
    add = write(root, features=["v2Checkpoint"])
    log = root / "_delta_log"
    [_, version, table, _] = [
        json.loads(line) for line in (root / commit_name(0)).read_text().splitlines()
    ]
    (log / "_sidecars").mkdir()
    data = checkpoint_bytes([{"add": add}], columns=["add"])
    (log / "_sidecars/x.parquet").write_bytes(data)
    sidecar = {"path": "x.parquet", "sizeInBytes": len(data), "modificationTime": 1}
    actions = [{"checkpointMetadata": {"version": 0}}, version, table, {"sidecar": sidecar}]
    name = f"{0:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    (log / name).write_bytes(lines(actions))
    (root / commit_name(0)).unlink()


def no_sidecar(root: Path) -> None:
    sidecars(root)
    (root / "_delta_log/_sidecars/x.parquet").unlink()


def hint(text: str) -> Callable[[Path], None]:
    return damaged(lambda root: (root / "_delta_log/_last_checkpoint").write_text(text))


def file_of(rows: pa.Table) -> Callable[[Path], None]:
    """Columns `id` and `x`, long, and a data file that holds something else."""
    return lambda root: (write(root, column("id"), column("x"), rows=rows), None)[1]


LONGS = pa.array([1, 2, 3], pa.int64())
ABSURD = {
    "delta.columnMapping.mode": "none",
    "delta.checkpointInterval": "-3",
    "delta.logRetentionDuration": "for ever",
    "delta.dataSkippingNumIndexedCols": "many",
    "delta.dataSkippingStatsColumns": "`,.,",
    "delta.enableDeletionVectors": "perhaps",
    "delta.parquet.compression.codec": "stones",
    "delta.targetFileSize": "huge",
    "delta.feature.quantumRows": "supported",
    "": "",
    "x" * 5_000: "\u202e",
}

_NO_TEXTS: Json = protocol(3, 7)
_NO_TEXTS["protocol"] |= {"readerFeatures": [1], "writerFeatures": [[]]}

TABLES: Mapping[str, Foreign] = {
    # What can be read
    "plain": Foreign(with_(), 3),
    "without files": Foreign(with_(rows=None), 0),
    "without columns": Foreign(begun(schemaString='{"type":"struct","fields":[]}'), 0),
    "odd partition": Foreign(partitions, 3),
    "colon in a name": Foreign(colon, 3),
    "colon in a folder": Foreign(with_(folder="run-10:00"), 3),
    "path with a dot": Foreign(spelled("./part-0.parquet"), 3),
    "absolute path": Foreign(spelled("{root}/part-0.parquet"), 3),
    "URL of its own": Foreign(spelled("file:{root}/part-0.parquet"), 3),
    "dates beyond the calendar": Foreign(dates, 3),
    "dotted names": Foreign(dotted, 1),
    "mapped by name": Foreign(mapped("name"), 3),
    "mapped by id": Foreign(mapped("id"), 3),
    "deep": Foreign(deep, 3),
    "wide": Foreign(wide, 1),
    "deletion vector": Foreign(vector, 2),
    "sidecars": Foreign(sidecars, 3),
    "void": Foreign(typed("void"), 3),
    "nanoseconds": Foreign(
        holding(column("t", "timestamp"), t=pa.array([-1, 1], pa.timestamp("ns", tz="UTC"))), 2
    ),
    "widened": Foreign(
        with_(
            rows=pa.table({"id": pa.array([1], pa.int32())}),
            features=["typeWidening"],
            properties={"delta.enableTypeWidening": "true"},
        ),
        1,
    ),
    "widened, preview": Foreign(with_(features=["typeWidening-preview"]), 3),
    "collations": Foreign(
        lambda root: (
            write(
                root,
                column("id", __COLLATIONS={"id": "icu.de"}),
                writer_features=["collations-preview"],
            ),
            None,
        )[1],
        3,
    ),
    "unknown writer feature": Foreign(with_(writer_features=["quantumRows"]), 3),
    "absurd properties": Foreign(with_(properties=ABSURD), 3),
    "absurd statistics": Foreign(with_(stats='{"numRecords":"x","minValues":7}'), 3),
    "no file behind the hint": Foreign(hint('{"version":7,"size":1}'), 3),
    "broken hint": Foreign(hint("{"), 3),
    "names that differ in case": Foreign(
        file_of(pa.table({"id": LONGS, "ID": LONGS, "x": LONGS})), 3
    ),
    # Types and features that we do not know
    **{
        f"type {type_}": Foreign(typed(type_, *features), reason=Reason.UNSUPPORTED_FEATURE)
        for type_, features in {
            "variant": (),
            "interval day to second": (),
            "interval year to month": (),
            "decimal(50,2)": (),
            "decimal(3,7)": (),
            "varchar(3)": (),
            "hyperloglog": (),
            "geometry(OGC:CRS84)": ("geospatial",),
            "geography": (),
        }.items()
    },
    **{
        f"feature {name}": Foreign(typed("variant", name), reason=Reason.UNSUPPORTED_FEATURE)
        for name in (
            "variantType", "variantType-preview", "variantShredding", "variantShredding-preview",
        )
    },
    "a nested variant": Foreign(
        typed({"type": "array", "elementType": struct(column("v", "variant")),
               "containsNull": True}, "variantType"),
        reason=Reason.UNSUPPORTED_FEATURE,
    ),
    "unknown reader feature": Foreign(
        with_(features=["quantumRows"]), reason=Reason.UNSUPPORTED_FEATURE
    ),
    "catalog": Foreign(with_(features=["catalogManaged"]), reason=Reason.UNSUPPORTED_FEATURE),
    "reader version 9": Foreign(
        raw(lines([info(), protocol(9, 9), metadata()])), reason=Reason.UNSUPPORTED_FEATURE
    ),
    # What is broken
    "nothing": Foreign(nothing, reason=Reason.TABLE_NOT_FOUND),
    "no log": Foreign(no_table, reason=Reason.TABLE_NOT_FOUND),
    "empty log": Foreign(raw(), reason=Reason.TABLE_NOT_FOUND),
    "a file": Foreign(a_file, reason=Reason.TABLE_NOT_FOUND),
    "a file as log": Foreign(a_file_as_log, reason=Reason.TABLE_NOT_FOUND),
    "no JSON": Foreign(raw(b"{"), reason=Reason.CORRUPT_LOG),
    "no UTF-8": Foreign(raw(b"\xff\xfe"), reason=Reason.CORRUPT_LOG),
    "empty commit": Foreign(raw(b""), reason=Reason.CORRUPT_LOG),
    "no metadata": Foreign(raw(lines([info(), protocol()])), reason=Reason.CORRUPT_LOG),
    "no protocol": Foreign(raw(lines([info(), metadata()])), reason=Reason.CORRUPT_LOG),
    "properties that are no texts": Foreign(
        begun(config={"delta.appendOnly": 3}), reason=Reason.CORRUPT_LOG
    ),
    "features that are no texts": Foreign(
        raw(lines([info(), _NO_TEXTS, metadata()])),
        reason=Reason.CORRUPT_LOG,
    ),
    "a version that is no number": Foreign(
        raw(lines([info(), metadata()]) + b'{"protocol":{"minReaderVersion":1e999,'
            b'"minWriterVersion":2}}\n'),
        reason=Reason.CORRUPT_LOG,
    ),
    "a type of another engine": Foreign(
        typed({"type": "udt", "class": "Vector", "sqlType": "long"}), reason=Reason.CORRUPT_LOG
    ),
    "a partition that is no column": Foreign(
        with_(partition_by=["p"], partition_values={"p": "1"}), reason=Reason.CORRUPT_LOG
    ),
    "a partition in another case": Foreign(
        lambda root: (
            write(root, column("id"), column("P"), partition_by=["p"],
                  partition_values={"p": "1"}),
            None,
        )[1],
        reason=Reason.CORRUPT_LOG,
    ),
    "a partition that is no number": Foreign(
        lambda root: (
            write(root, column("id"), column("p"), partition_by=["p"],
                  partition_values={"p": "many"}),
            None,
        )[1],
        reason=Reason.CORRUPT_LOG,
    ),
    "one column twice": Foreign(
        lambda root: (write(root, column("id"), column("id")), None)[1], reason=Reason.CORRUPT_LOG
    ),
    "columns that differ in case": Foreign(
        lambda root: (write(root, column("id"), column("ID")), None)[1], 3
    ),
    "no sidecar": Foreign(no_sidecar, reason=Reason.CORRUPT_LOG),
    "broken vector": Foreign(broken_vector, reason=Reason.CORRUPT_DELETION_VECTOR),
    "no data file": Foreign(
        damaged(lambda root: (root / "part-0.parquet").unlink()), reason=Reason.DATA_FILE_MISSING
    ),
    "path that is a URL": Foreign(spelled("aa:bb.parquet"), reason=Reason.LOCATION_NOT_ALLOWED),
    "path that leads out": Foreign(
        spelled("../lake/part-0.parquet"), reason=Reason.LOCATION_NOT_ALLOWED
    ),
    "no Parquet": Foreign(
        damaged(lambda root: (root / "part-0.parquet").write_text("PAR1")),
        reason=Reason.STORAGE_ERROR,
    ),
    "other types in the file": Foreign(
        file_of(pa.table({"id": ["x"], "x": [[1]]})), reason=Reason.STORAGE_ERROR
    ),
    "several that may be meant": Foreign(
        file_of(pa.table({"ID": LONGS, "Id": LONGS, "x": LONGS})), reason=Reason.STORAGE_ERROR
    ),
    "one name twice": Foreign(
        file_of(pa.Table.from_arrays([LONGS, LONGS, LONGS], names=["id", "x", "x"])),
        reason=Reason.STORAGE_ERROR,
    ),
    "times beyond microseconds": Foreign(
        holding(column("t", "timestamp"), t=pa.array([2**60], pa.timestamp("ms", tz="UTC"))),
        reason=Reason.STORAGE_ERROR,
    ),
}  # fmt: skip

ODD_PLACES = (
    "a b",
    "run-10:00",
    "file:",
    "a%20b",
    "ä.'\"`$(x)",
    "a\nb",
    "-v",
    "a=b;c,d",
    "x" * 200,
    "{}",
    "#?&",
)
"""Names of folders that a table may lie in."""
