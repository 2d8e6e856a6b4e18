"""Wrong resources, one for every rule: what the API server and `tandem run` both must refuse.

The words are those that people read, so that a rule and the validator it stands on cannot drift
apart. Types, bounds, enums and required fields are not here: `broken_fields` makes a wrong
resource for each of them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

TABLE_REF = {"tableRef": {"name": "flights"}}
DELTA = {"format": "Delta", "location": "s3://lake/staging"}

RIGHT: dict[str, dict[str, Any]] = {
    "LakeTable": {"location": "s3://lake/flights"},
    "TableIngest": {**TABLE_REF, "source": {"format": "Csv", "location": "s3://lake/day.csv"}},
    "TableCompaction": {**TABLE_REF, "type": "Major"},
    "TableUpdate": {**TABLE_REF, "delete": {"where": "a = 1"}},
    "SegmentRewrite": {**TABLE_REF, "segments": ["7"], "rewrite": {"purgeDeleted": True}},
    "LogCompaction": {**TABLE_REF},
    "TableReplace": {**TABLE_REF, "replace": {"intervals": ["2013-03"]}},
    "IndexServer": {},
}
"""The least that each kind needs."""


@dataclass(frozen=True)
class Wrong:
    kind: str
    spec: dict[str, Any]
    """Fields that replace those of `RIGHT`; `None` takes one away."""
    words: str
    """What the schema and the model both say."""
    name: str = "wrong"

    @property
    def id(self) -> str:
        return f"{self.kind}: {self.words[:60]}"

    def manifest(self) -> dict[str, Any]:
        return manifest(self.kind, self.spec, self.name)


def manifest(kind: str, spec: dict[str, Any], name: str = "x") -> dict[str, Any]:
    """A resource of that kind: `RIGHT`, with these fields replaced."""
    fields = copy.deepcopy({**RIGHT[kind], **spec})
    return {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {key: value for key, value in fields.items() if value is not None},
    }


def table(words: str, **spec: Any) -> Wrong:
    return Wrong("LakeTable", spec, words)


def ingest(words: str, **spec: Any) -> Wrong:
    return Wrong("TableIngest", spec, words)


def compaction(words: str, **spec: Any) -> Wrong:
    return Wrong("TableCompaction", spec, words)


def update(words: str, **spec: Any) -> Wrong:
    return Wrong("TableUpdate", spec, words)


def merge(words: str, **parts: Any) -> Wrong:
    whole = {"source": DELTA, "on": "t.id = s.id", "whenMatched": [{"delete": {}}], **parts}
    given = {key: value for key, value in whole.items() if value is not None}
    return Wrong("TableUpdate", {"delete": None, "merge": given}, words)


def rewrite(words: str, **wish: Any) -> Wrong:
    return Wrong("SegmentRewrite", {"rewrite": wish}, words)


def replace(words: str, **spec: Any) -> Wrong:
    return Wrong("TableReplace", spec, words)


def server(words: str, **spec: Any) -> Wrong:
    return Wrong("IndexServer", spec, words)


def create(words: str, **parts: Any) -> Wrong:
    columns = [{"name": "a", "type": "long"}, {"name": "b", "type": "date"}]
    return table(words, create={"schema": columns, **parts})


def schedule(words: str, **parts: Any) -> Wrong:
    whole = {"cron": "0 3 * * *", "template": {"type": "Major"}, **parts}
    return table(words, compaction={"schedules": [whole]})


def window(words: str, **parts: Any) -> Wrong:
    whole = {"start": "01:00", "duration": "4h", **parts}
    return table(words, compaction={"maintenanceWindow": whole})


WRONG = [
    # Names
    Wrong("LakeTable", {}, "must be a DNS-1123 name", name=f"{'x' * 64}"),
    compaction("must be a DNS-1123 name", tableRef={"name": "Flights"}),
    table("must be a DNS-1123 name", storage={"secretRef": {"name": "my_lake"}}),
    # Sizes
    compaction("must be a size such as 128Mi, 1Gi, 1G", targetFileSize="1GB"),
    compaction("must be a size such as 128Mi, 1Gi, 1G", targetFileSize="100m"),
    compaction("must be a size such as 128Mi, 1Gi, 1G", targetFileSize="-1Gi"),
    compaction("must be a size such as 128Mi, 1Gi, 1G", targetFileSize=-1),
    compaction("less than 8Ei", targetFileSize="9Ei"),
    compaction("must be at least 1Mi", maxBytesPerCommit=16),
    compaction("must be at least 1Mi", maxBytesPerCommit="1023Ki"),
    # Reading this one as a quantity takes minutes.
    compaction("must be a size such as 128Mi, 1Gi, 1G", targetFileSize="1e99999999"),
    compaction("greater than 0", targetFileSize=0),
    compaction("greater than 0", targetFileSize="0Mi"),
    ingest("must be a size such as 128Mi, 1Gi, 1G", targetFileSize="1GB"),
    # Durations
    table("must be a duration such as 10m, 1h30m or 168h", retention={"files": "7d"}),
    table("must be a duration such as 10m, 1h30m or 168h", retention={"files": "-1h"}),
    table("must be at most 100 years (876000h)", retention={"rowMaps": "876001h"}),
    table("must be at most 100 years (876000h)", retention={"rowMaps": "99999999h"}),
    window("greater than 0", duration="0s"),
    window("less than or equal to", duration="25h"),
    # Locations
    table("must be a whole URL: variables and ~ are not replaced", location="s3://${BUCKET}/t"),
    table("must be a whole URL: variables and ~ are not replaced", location="~/flights"),
    table("one of the schemes file, s3, gs, abfss: file:///data", location="/data"),
    table("one of the schemes file, s3, gs, abfss; write s3://", location="s3a://lake/flights"),
    table("one of the schemes file, s3, gs, abfss", location="hdfs://lake/flights"),
    table("must have no '?' and no '#'", location="s3://lake/flights?versionId=1"),
    table("must not contain '..'", location="file:///data/../flights"),
    table("must not contain '..'", location="s3://lake/a/%2e%2e/b"),
    table("must not contain control characters", location="s3://lake/a\tb"),
    table("must not contain control characters", location="s3://lake/a%0ab"),
    table("must be absolute: three slashes", location="file://data/flights"),
    table("must not be the root of the file system", location="file:///"),
    table("must not contain credentials", location="s3://key:hunter2@lake/flights"),
    table("must name a bucket", location="s3:///flights"),
    table("must be abfss://container@account.dfs.core", location="abfss://lake/flights"),
    ingest("one of the schemes", source={"format": "Csv", "location": "/in/day.csv"}),
    # Nothing secret in clear text
    table("must not contain secrets", storage={"options": {"aws_secret_access_key": "hunter2"}}),
    table("must not contain secrets", storage={"options": {"AZURE_SAS": "hunter2"}}),
    table("must be a URL with one of the schemes", storage={"cloneSources": ["/lake/source"]}),
    table("must not contain '..'", storage={"cloneSources": ["s3://lake/source/../x"]}),
    table("has user info", storage={"options": {"endpoint": "https://user:hunter2@host"}}),
    # Empty texts
    update("must not be empty", delete={"where": " "}),
    update("must not be empty", delete=None, update={"set": {"a": ""}}),
    update("must not be empty", delete=None, update={"set": {" ": "1"}}),
    table("must not be empty", time={"column": ""}),
    # What is created
    create("not in schema", partitionBy=["c"]),
    create("partitionBy names a column twice", partitionBy=["a", "A"]),
    create("at least one column must not be in partitionBy", partitionBy=["a", "b"]),
    table("keys names a column twice", mergeOnRead={"keys": ["a", "A"]}),
    table("only goes with orderingColumn", mergeOnRead={"keys": ["a"], "deletesKept": "1h"}),
    table("must name each column once", index={"bloomFilters": {"columns": ["a", "A"]}}),
    table("must not be empty", index={"bloomFilters": {"columns": [" "]}}),
    table("compaction.chunks needs time chunks", compaction={"chunks": {}}),
    table(
        "compaction.chunks needs time chunks",
        compaction={"chunks": {}},
        time={"column": "t", "granularity": "All"},
    ),
    table("retention.rows needs time chunks", retention={"rows": "8760h"}),
    table(
        "retention.rows does not go with mergeOnRead",
        retention={"rows": "8760h"},
        time={"column": "t"},
        mergeOnRead={"keys": ["a"]},
    ),
    table(
        "must have segments, bytes or percent",
        time={"column": "t"},
        compaction={"chunks": {"minUncompacted": {}}},
    ),
    # Compactions
    compaction("minor only goes with type Minor, but type is Major", minor={}),
    compaction(
        "adjacentOnly does not go with segments",
        type="Minor",
        minor={"segments": ["1"], "adjacentOnly": True},
    ),
    compaction("exclusive only goes with lockMode Exclusive", exclusive={"maxYields": 2}),
    compaction("exclusive only goes with lockMode Exclusive", lockMode="Concurrent", exclusive={}),
    compaction(
        "lockMode Exclusive does not go with type LogMerge", type="LogMerge", lockMode="Exclusive"
    ),
    ingest(
        "lockMode Exclusive only goes with TableCompaction and SegmentRewrite",
        lockMode="Exclusive",
    ),
    compaction("semiMajor only goes with type SemiMajor, but type is Major", semiMajor={}),
    compaction("major only goes with type Major, but type is Minor", type="Minor", major={}),
    compaction("custom only goes with type Custom", custom={"where": "a = 1"}),
    compaction("type Custom needs custom.segments or custom.where", type="Custom"),
    compaction("must have exactly one of segments, where", type="Custom", custom={}),
    compaction(
        "must have exactly one of segments, where",
        type="Custom",
        custom={"segments": ["1"], "where": "a = 1"},
    ),
    compaction(
        "skipOffsetFromLatest does not go with custom.segments",
        type="Custom",
        custom={"segments": ["1"]},
        skipOffsetFromLatest="1h",
    ),
    compaction("columns only goes with the strategies Sort and ZOrder", layout={"columns": ["a"]}),
    compaction("strategy Sort needs columns", layout={"strategy": "Sort"}),
    compaction("strategy ZOrder needs columns", layout={"strategy": "ZOrder", "columns": []}),
    # Segment rewrites
    rewrite("must set at least one of purgeDeleted, recompress, sortBy"),
    replace("must have intervals, partitions or segments", replace={}),
    replace(
        "segments goes neither with intervals nor with partitions",
        replace={"intervals": ["2013"], "segments": ["7"]},
    ),
    replace("must be an interval of time such as", replace={"intervals": ["2013-04", "March"]}),
    replace("must be an interval of time such as", replace={"intervals": ["2013-3"]}),
    replace("must be an interval of time such as", replace={"intervals": ["2013/2014/2015"]}),
    replace("startVersion only goes with scope AtStart", startVersion=3, scope="AtCommit"),
    replace("segments only go with scope AtStart", replace={"segments": ["7"]}, scope="AtCommit"),
    replace("outside only goes with a source", outside="Drop"),
    replace(
        "outside does not go with segments",
        replace={"segments": ["7"]},
        source=DELTA,
        outside="Fail",
    ),
    replace("granularity only goes with a source", granularity="Day"),
    replace("granularity must be shorter than All", source=DELTA, granularity="All"),
    table(
        "align needs a granularity shorter than All",
        time={"column": "t", "granularity": "All", "align": True},
    ),
    compaction(
        "granularity must be shorter than All",
        type="SemiMajor",
        semiMajor={"granularity": "All"},
    ),
    compaction(
        "semiMajor.granularity and spanning: Cut only go with layout strategy BinPack",
        type="SemiMajor",
        semiMajor={"spanning": "Cut"},
        layout={"strategy": "Sort", "columns": ["a"]},
    ),
    replace("must not be empty", replace={"partitions": [{" ": "UA"}]}),
    rewrite("must set at least one of purgeDeleted", purgeDeleted=False, sortBy=[]),
    rewrite("level only goes with zstd, gzip and lz4", recompress={"codec": "snappy", "level": 1}),
    rewrite("level only goes with", recompress={"codec": "uncompressed", "level": 1}),
    rewrite("the levels of gzip are 1 to 9", recompress={"codec": "gzip", "level": 10}),
    rewrite("the levels of lz4 are 1 to 12", recompress={"codec": "lz4", "level": 13}),
    rewrite("must not be empty", sortBy=[" "]),
    rewrite("must name each column once", addBloomFilters={"columns": ["a", "A"]}),
    # Automatic compaction
    schedule("must have five fields: minute hour day-of-month month day-of-week", cron="daily"),
    schedule(
        "must have five fields: minute hour day-of-month month day-of-week", cron="0 0 3 * * *"
    ),
    schedule(
        "custom.segments does not go with a schedule",
        template={"type": "Custom", "custom": {"segments": ["1"]}},
    ),
    schedule(
        "minor.segments does not go with a schedule",
        template={"type": "Minor", "minor": {"segments": ["1", "2"]}},
    ),
    schedule("must be a size", template={"type": "Major", "targetFileSize": "1GB"}),
    window("must be a time of day such as 01:30", start="25:00"),
    window("must not be empty", timeZone=" "),
    # Statements
    update("must have exactly one of update, delete, merge", delete=None),
    update("must have exactly one of update, delete, merge", update={"set": {"a": "1"}}),
    update("must have exactly one of update, delete, merge, upsert", upsert={"source": DELTA}),
    update(
        "version only goes with format Delta",
        delete=None,
        deleteKeys={"source": {**DELTA, "format": "Json", "version": 1}},
    ),
    update("set names a column twice", delete=None, update={"set": {"a": "1", "A": "2"}}),
    update("put column names such as on, off, yes", delete=None, update={"set": {"true": "1"}}),
    update("put column names such as on, off, yes", delete=None, update={"set": {"false": "1"}}),
    ingest(
        "version only goes with format Delta",
        source={"format": "Csv", "location": "s3://lake/day.csv", "version": 1},
    ),
    merge("must have at least one of whenMatched, whenNotMatched", whenMatched=None),
    merge("must have exactly one of delete, update, updateAll", whenMatched=[{}]),
    merge("must have exactly one of insert, insertAll", whenNotMatched=[{"where": "s.a > 0"}]),
    merge(
        "must have exactly one of delete, update",
        whenNotMatchedBySource=[{"delete": {}, "update": {"set": {"a": "1"}}}],
    ),
    merge("needs on, once", true="t.id = s.id"),
    # Index servers
    Wrong("IndexServer", {}, "metadata.name must be at most 40", name="x" * 41),
    Wrong("IndexServer", {}, "metadata.name must be at most 40", name="a.b"),
    Wrong("IndexServer", {}, "metadata.name must be at most 40", name="1st"),
    server(
        "names does not go with selector",
        tables={"names": ["flights"], "selector": {"matchLabels": {"index": "yes"}}},
    ),
    server("at most 317 characters", tables={"selector": {"matchLabels": {"a" * 318: "yes"}}}),
    server("must be a DNS-1123 name", tables={"names": ["Flights"]}),
    server("memory must not be less than shardSize", memory="128Mi", shardSize="256Mi"),
    server("memory must be at least 64Mi", memory="32Mi"),
    server("memory must be at least 64Mi", memory=67_108_863),
    server("must be a size such as 128Mi, 1Gi, 1G", memory="-4Gi"),
    server("greater than 0", disk=0),
    server(
        "tls does not go with mode Plaintext",
        access={"mode": "Plaintext", "tls": {"secretRef": {"name": "t"}}},
    ),
    server("token only goes with mode SharedToken", access={"token": {"secretRef": {"name": "t"}}}),
    server("greater than or equal to", freshness={"poll": "10ms"}),
    server("less than or equal to", freshness={"maxStaleness": "25h"}),
    server("greater than or equal to", answers={"ttl": "1s"}),
]

# A key of a mapping that is too long.
WRONG += [
    update("at most 256 characters", delete=None, update={"set": {"a" * 257: "1"}}),
]

ONLY_THE_VALIDATOR = [
    # The API server compares names as they are written: comparing each with each costs too much.
    create("twice", schema=[{"name": "a", "type": "long"}, {"name": "A", "type": "long"}]),
    update("set names a column twice", delete=None, update={"set": {"aB": "1", "Ab": "2"}}),
    # A type is text or a mapping, which a structural schema can only leave open.
    create("must be one of string, long", schema=[{"name": "a", "type": "int"}]),
    create("must be one of string, long", schema=[{"name": "a", "type": "decimal(9,10)"}]),
    create("must have type struct, array or map", schema=[{"name": "a", "type": {"type": "set"}}]),
    create(
        "a struct must have at least one field",
        schema=[{"name": "a", "type": {"type": "struct", "fields": []}}],
    ),
    create(
        "a struct must have at least one field",
        schema=[
            {
                "name": "a",
                "type": {"type": "array", "elementType": {"type": "struct"}, "containsNull": True},
            }
        ],
    ),
    create(
        "a struct must have at least one field",
        schema=[
            {
                "name": "a",
                "type": {
                    "type": "map",
                    "keyType": "string",
                    "valueType": {
                        "type": "struct",
                        "fields": [{"name": "b", "type": {"type": "struct", "fields": []}}],
                    },
                },
            }
        ],
    ),
    # What a property means is Delta's; a table that was created before could not be changed any
    # more.
    *(
        create(words, properties={name: value})
        for name, value, words in (
            ("delta.checkpointInterval", "0", "must be a positive number"),
            ("delta.checkpointInterval", "often", "must be a positive number"),
            ("delta.logRetentionDuration", "a while", "must be an interval such as"),
            ("delta.deletedFileRetentionDuration", "interval 2 months", "must be an interval"),
            ("delta.enableDeletionVectors", "yes", "must be true or false"),
            ("delta.enableExpiredLogCleanup", "maybe", "must be true or false"),
            ("delta.checkpoint.writeStatsAsJson", "NaN", "must be true or false"),
            ("delta.checkpointInterval", "-5", "must be a positive number"),
            ("delta.checkpointInterval", "NaN", "must be a positive number"),
            # What Python takes for digits and spaces, and Java does not.
            ("delta.checkpointInterval", "\u0663", "must be a positive number"),
            ("delta.logRetentionDuration", "interval \u0663 days", "must be an interval"),
            ("delta.logRetentionDuration", "interval 3\u00a0days", "must be an interval"),
            ("delta.logRetentionDuration", "interval -1 days", "must be an interval"),
            # More microseconds than Java can count.
            ("delta.logRetentionDuration", "interval 999999999 weeks", "must be an interval"),
            ("delta.checkpointinterval", "10", "must be written delta.checkpointInterval"),
            ("delta.columnMapping.mode", "banana", "must be none"),
            ("delta.columnMapping.mode", "name", "needs a table feature"),
            ("delta.checkpointPolicy", "v2", "needs a table feature"),
            ("delta.enableChangeDataFeed", "true", "needs a table feature"),
            ("delta.enableRowTracking", "true", "needs a table feature"),
            ("delta.enableInCommitTimestamps", "TRUE", "needs a table feature"),
            ("delta.enableTypeWidening", "true", "needs a table feature"),
            ("delta.constraints.positive", "a > 0", "needs a table feature"),
            ("delta.feature.banana", "supported", "is no property"),
            ("delta.minReaderVersion", "99", "is no property"),
        )
    ),
    # Calendars.
    schedule("must be a time that occurs", cron="61 3 * * *"),
    schedule("must be an IANA time zone", timeZone="Europe/Atlantis"),
    window("must be an IANA time zone", timeZone="Europe/Atlantis"),
]
"""What the API server cannot know; the operator says it in the resource's conditions."""
