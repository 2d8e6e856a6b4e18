"""How tables are named by catalog: parts, URLs of the command line, and what a Hive Metastore or
Glue says of a table."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.invoke import Tandem
from tandem.catalogs.registered import RegisteredTable, location_of
from tandem.errors import InvalidSpec, TableNotFound, TandemError, UnsupportedFeature
from tandem.spec.catalog import Catalog, catalog_of_url, parts_of

DELTA = {"spark.sql.sources.provider": "DELTA"}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("main.sales.orders", ("main", "sales", "orders")),
        ("main.`a.b`.`my ``t```", ("main", "a.b", "my `t`")),
        ("größe.50%.表", ("größe", "50%", "表")),
        ("`..`.`../x`", ("..", "../x")),
    ],
)
def test_the_parts_of_a_name(name: str, parts: tuple[str, ...]) -> None:
    assert parts_of(name) == parts


@pytest.mark.parametrize("name", ["", ".", "a.", ".a", "a..b", "a b", "`a", "a`", "`a`b", "a\n"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match="parts with dots"):
        parts_of(name)


TEXT = st.text(st.characters(min_codepoint=32, codec="utf-8"), min_size=1)


@given(st.lists(TEXT, min_size=3, max_size=3))
def test_any_part_can_be_put_into_backquotes(parts: list[str]) -> None:
    name = ".".join(f"`{part.replace('`', '``')}`" for part in parts)
    assert list(parts_of(name)) == parts
    catalog = Catalog.model_validate({"unity": {"uri": "https://unity", "name": name}})
    assert Catalog.model_validate(catalog_of_url(catalog.url)) == catalog


@pytest.mark.parametrize(
    ("url", "catalog"),
    [
        ("unity://uc:8080/main.sales.orders", {"uri": "https://uc:8080"}),
        ("unity+http://127.0.0.1:8080/main.sales.orders", {"uri": "http://127.0.0.1:8080"}),
        ("unity://uc/behind/a/proxy/main.sales.orders", {"uri": "https://uc/behind/a/proxy"}),
        (
            "unity://uc/main.sales.`my%20%2F%25`",
            {"uri": "https://uc", "name": "main.sales.`my /%`"},
        ),
    ],
)
def test_a_table_of_unity_catalog_as_a_url(url: str, catalog: dict[str, str]) -> None:
    found = Catalog.model_validate(catalog_of_url(url))
    expected = {"name": "main.sales.orders", **catalog}
    assert found == Catalog.model_validate({"unity": expected})
    assert found.url == url


def test_other_urls_are_locations() -> None:
    assert catalog_of_url("s3://lake/main.sales.orders") is None
    assert catalog_of_url("/data/unity://x/y") is None


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("unity://uc/sales.orders", "must be catalog.schema.table"),
        ("unity://uc/a.b.c.d", "must be catalog.schema.table"),
        ("unity://user:secret@uc/a.b.c", "must be https://host"),
        ("unity://uc:99999/a.b.c", "must be https://host"),
        ("unity:///a.b.c", "must be https://host"),
        ("hive://metastore:9083/orders", "must be database.table"),
        ("hive://a,b/db.orders", "must be thrift://host"),
        ("glue://eu-central-1.evil.example/db.orders", "must be an AWS region"),
    ],
)
def test_a_wrong_url_is_named(tandem: Tandem, url: str, words: str) -> None:
    done = tandem("table", "show", url)
    assert done.exit_code == 2
    assert words in done.stderr
    assert "secret" not in done.stderr


def test_the_resources_of_a_command_have_the_catalog(tandem: Tandem) -> None:
    done = tandem("compact", "unity+http://uc:8080/main.sales.orders", "-o", "yaml")
    assert done.exit_code == 0, done.stderr
    assert "uri: http://uc:8080\n      name: main.sales.orders\n" in done.stdout
    assert "location" not in done.stdout


@pytest.mark.parametrize(
    ("found", "location"),
    [
        ({"serde_parameters": {"path": "s3a://lake/o"}}, "s3://lake/o"),
        ({"location": "s3://lake/my orders%20/"}, "s3://lake/my%20orders%2520"),
        (
            {
                "location": "file:/warehouse/orders-__PLACEHOLDER__",
                "serde_parameters": {"path": "file:/lake/o"},
            },
            "file:///lake/o",
        ),
        ({"parameters": {"TABLE_TYPE": "delta"}, "location": "gs://lake/o"}, "gs://lake/o"),
        (
            {
                "parameters": {"storage_handler": "io.delta.hive.DeltaStorageHandler"},
                "location": "s3n://lake/o",
            },
            "s3://lake/o",
        ),
    ],
)
def test_the_location_of_a_registered_table(found: dict[str, Any], location: str) -> None:
    assert location_of(RegisteredTable(**{"parameters": DELTA, **found}), resource="t") == location


@pytest.mark.parametrize(
    ("found", "error", "words"),
    [
        ({"table_type": "VIRTUAL_VIEW", "parameters": DELTA}, UnsupportedFeature, "is a view"),
        ({"parameters": {"table_type": "ICEBERG"}}, UnsupportedFeature, "table_type=ICEBERG"),
        ({"parameters": {}, "input_format": "Text"}, UnsupportedFeature, "found: Text"),
        ({"parameters": DELTA}, TableNotFound, "no location"),
        ({"parameters": DELTA, "location": "s3://x-__PLACEHOLDER__"}, TableNotFound, "PLACEHOLDER"),
        ({"parameters": DELTA, "location": "hdfs://nn/x"}, UnsupportedFeature, "scheme 'hdfs'"),
        ({"parameters": DELTA, "location": "s3://lake/../x"}, UnsupportedFeature, ".. segments"),
        ({"parameters": DELTA, "location": "s3://k:secret@lake/x"}, UnsupportedFeature, "creden"),
    ],
)
def test_what_a_catalog_has_that_is_no_table_here(
    found: dict[str, Any], error: type[TandemError], words: str
) -> None:
    with pytest.raises(error) as refused:
        location_of(RegisteredTable(**found), resource="hive://metastore/db.t")
    assert words in str(refused.value)
    assert "hive://metastore/db.t" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_only_its_catalog_knows_where_a_table_is() -> None:
    from tandem.spec import LakeTable

    catalog = {"hive": {"uri": "thrift://metastore", "name": "db.t"}}
    table = LakeTable.model_validate(
        {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "LakeTable",
            "metadata": {"name": "t"},
            "spec": {"catalog": catalog},
        }
    )
    assert table.address == "hive://metastore/db.t"
    with pytest.raises(InvalidSpec, match="which only its catalog knows"):
        _ = table.location
