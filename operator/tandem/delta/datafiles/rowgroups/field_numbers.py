"""The numbers of fields in a Parquet footer and in an offset index, by the struct that has them: no
prefix for `FileMetaData`, `G_` for `RowGroup`, `C_` for `ColumnChunk`, `M_` for `ColumnMetaData`,
`S_` for `Statistics`.

Source: `parquet.thrift` of apache/parquet-format.
"""

from __future__ import annotations

from typing import Final

VERSION, SCHEMA, ROWS, GROUPS, PAIRS, CREATOR, ORDERS, ENCRYPTION = range(1, 9)
KNOWN: Final = frozenset(range(1, 8))
G_COLUMNS, G_BYTES, G_ROWS, G_SORTING, G_OFFSET, G_COMPRESSED, G_ORDINAL = range(1, 8)
C_PATH, C_OFFSET, C_METADATA, C_OFFSETS, C_OFFSETS_SIZE = range(1, 6)
C_INDEX, C_INDEX_SIZE, C_CRYPTO, C_ENCRYPTED = range(6, 10)
M_TYPE, M_ENCODINGS, M_NAMES, M_CODEC, M_VALUES, M_RAW, M_SIZE = range(1, 8)
M_DATA, M_INDEX, M_DICTIONARY, M_STATISTICS = range(9, 13)
M_FILTER, M_FILTER_SIZE = 14, 15
S_MAX, S_MIN, S_NULLS, S_DISTINCT, S_MAX_VALUE, S_MIN_VALUE = range(1, 7)
PAGE_OFFSET, PAGES = 1, 1
