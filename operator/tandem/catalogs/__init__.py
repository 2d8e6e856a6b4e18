"""The catalogs that name tables: what they are asked, and how.

    registered    what a Hive Metastore or Glue says of a table
    hive          the Hive Metastore's one call, over Thrift
    glue          AWS Glue's one call
"""
