"""CSV and JSON text as records.

`csv`, `json`, `json_fields` and `json_rows` are pure.

    csv          RFC 4180
    json         JSON values, line by line
    json_fields  the fields of JSON lines, without Spark
    json_rows    JSON lines as arrays of texts
    lines        files as whole lines
    records      the data source of records
"""
