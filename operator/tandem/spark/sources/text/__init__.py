"""CSV and JSON text as records.

`csv`, `json` and `json_rows` are pure.

    csv        RFC 4180
    json       JSON values, one line at a time
    json_rows  JSON lines as arrays of texts
    lines      files in whole lines
    records    the data source of records
    unpack     compressed files
"""
