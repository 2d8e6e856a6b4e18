"""CSV and JSON text as records.

`csv`, `json` and `json_rows` are pure.

    csv        RFC 4180
    json       JSON values, line by line
    json_rows  JSON lines as arrays of texts
    lines      files as whole lines
    records    the data source of records
    unpack     compressed files
"""
