"""Which readers know deletion vectors, and who says so: a table of `docs/compatibility.md`.

`TRIED`: read here, on a table of ours with a vector. The other sources were read on `AS_OF`; what
none of them says is "not found".
"""

from __future__ import annotations

from typing import Final

AS_OF = "November 2026"
TRIED = "tried"

Source = tuple[str, str] | str
"""A title and an address; or words."""
READERS: tuple[tuple[str, str, tuple[Source, ...]], ...] = (
    (
        "Spark + Delta",
        "from Delta 2.3; writes them in DELETE from 2.4, in UPDATE from 3.0, in MERGE from 3.1",
        (("What are deletion vectors?", "https://docs.delta.io/delta-deletion-vectors"),),
    ),
    (
        "Databricks",
        "from Runtime 12.2 LTS; 14.3 LTS is recommended to write them",
        (("Deletion vectors", "https://docs.databricks.com/aws/en/delta/deletion-vectors"),),
    ),
    (
        "`deltalake`",
        "from 1.3.2 by `QueryBuilder`, from 1.6 by `scan()`; `to_pyarrow_table()` and "
        "`to_pandas()` refuse, `count()` ignores them. Writes beside them, but none itself",
        (TRIED,),
    ),
    (
        "Polars",
        "from 1.40, with `deltalake` 1.4.2, but in 2.1 not those of files of partition values with "
        "a blank, a colon or a slash; `use_pyarrow=True` refuses",
        (TRIED,),
    ),
    (
        "DuckDB",
        "the extension `delta`, from DuckDB 0.10.3; writes appends only",
        (("duckdb-delta", "https://github.com/duckdb/duckdb-delta"), f"1.4.4 {TRIED}"),
    ),
    (
        "Trino",
        "from 427; writes them from 454. Until 481 DELETE took wrong rows of some files; 470 and "
        "479 ignore vectors in a checkpoint once `delta.enableDeletionVectors` is false",
        (
            ("427", "https://trino.io/docs/current/release/release-427.html"),
            ("454", "https://trino.io/docs/current/release/release-454.html"),
            ("481", "https://trino.io/docs/current/release/release-481.html"),
            ("issue 30685", "https://github.com/trinodb/trino/issues/30685"),
        ),
    ),
    (
        "Amazon Athena",
        "engine version 3, which only reads",
        (
            (
                "Query Linux Foundation Delta Lake tables",
                "https://docs.aws.amazon.com/athena/latest/ug/delta-lake-tables.html",
            ),
        ),
    ),
    (
        "Amazon EMR",
        "from 6.12, which has Delta 2.4; 6.11 has 2.2",
        (
            (
                "Delta release history",
                "https://docs.aws.amazon.com/emr/latest/ReleaseGuide/Delta-release-history.html",
            ),
        ),
    ),
    (
        "AWS Glue",
        "from 5.0, which has Delta 3.3; 4.0 has 2.1",
        (
            (
                "Using the Delta Lake framework in AWS Glue",
                "https://docs.aws.amazon.com/glue/latest/dg/"
                "aws-glue-programming-etl-format-delta-lake.html",
            ),
        ),
    ),
    (
        "Redshift Spectrum",
        "no: it reads manifests, which Spark then refuses to write "
        "(`DELTA_UNSUPPORTED_GENERATE_WITH_DELETION_VECTORS`)",
        (
            (
                "AWS Redshift Spectrum connector",
                "https://docs.delta.io/redshift-spectrum-integration",
            ),
        ),
    ),
    (
        "Snowflake",
        "as an Iceberg table of Delta files, from 2 March 2026; as an external table: not found",
        (
            (
                "release note",
                "https://docs.snowflake.com/en/release-notes/2026/other/"
                "2026-03-02-iceberg-delta-deletion-vectors",
            ),
        ),
    ),
    (
        "BigQuery",
        "yes; since when: not found",
        (("Google BigQuery connector", "https://docs.delta.io/bigquery-integration"),),
    ),
    (
        "Microsoft Fabric",
        "Spark from runtime 1.2, SQL analytics endpoint, dataflows, KQL databases; not pipelines",
        (
            (
                "Delta Lake table format interoperability",
                "https://learn.microsoft.com/en-us/fabric/fundamentals/delta-lake-interoperability",
            ),
        ),
    ),
    ("Power BI", "Direct Lake; by other connectors: not found", ("as Fabric",)),
    (
        "ClickHouse",
        "from 26.1",
        (("pull request 93852", "https://github.com/ClickHouse/ClickHouse/pull/93852"),),
    ),
    (
        "Flink",
        "no: its source refuses the protocol; the connector of Delta 4.4 has no source",
        (
            ("issue 2874", "https://github.com/delta-io/delta/issues/2874"),
            ("README", "https://github.com/delta-io/delta/blob/v4.4.0/flink/README.md"),
        ),
    ),
    ("Presto", "no", (("issue 26964", "https://github.com/prestodb/presto/issues/26964"),)),
    (
        "Hive",
        "no: its connector knows reader version 1 only",
        (("issue 468", "https://github.com/delta-io/connectors/issues/468"),),
    ),
)


WRONG: Final = """
With or without vectors, by default settings:

- Polars 2.1 takes partition values from folders, not from the log. Files of Tandem lie in such
  folders ([decision 0197](decisions/0197-folders-of-partition-values.md)), but not those of its
  releases before November 2026: it reads NULL for these, until they are rewritten.
- `to_pandas(filters=…)`, `to_pyarrow_table(filters=…)` and `to_pyarrow_dataset()` of `deltalake`
  1.6 find no row of a file that has statistics, but no bounds of the column: of a decimal that a
  JSON number cannot hold, an infinity, NaN, a text with U+10FFFF as its 33rd character.
"""
"""What readers answer wrongly, found by comparing them after our operations."""


def readers_table() -> str:
    """`READERS` in Markdown."""
    lines = ["| reader | reads deletion vectors | source |", "|---|---|---|"]
    for reader, words, sources in READERS:
        named = (each if isinstance(each, str) else f"[{each[0]}]({each[1]})" for each in sources)
        lines.append(f"| {reader} | {words} | {', '.join(named)} |")
    return "\n".join(lines) + "\n" + WRONG
