"""Catalogs: what decides which versions a table has, where it lies, and what may be done to it.

Speaks to catalogs only; tables are read and written through `tandem.storage`. The token of a
catalog is in no error, log or text of an object of this package.

    lookup      where the catalog of a LakeTable says that the table is
    rest        JSON over HTTP
    unity       a table in Unity Catalog, and its store with the credentials that it gives
    registered  what a Hive Metastore or Glue says of a table
    hive        the Hive Metastore's one call, over Thrift
    glue        AWS Glue's one call
"""
