"""Segments of a table as a pure function of its log: names, order, lineage, time chunks, and what
is visible when.

No I/O and no clock: everything here works on Delta actions that were read elsewhere.

    working_set     what is visible when
    segments        segments, live and former, and their tags; tags of live files, in columns
    segment_files   live files, each an index into columns
    file_columns    those columns
    names           names and numbers of segments; pins of versions by readers, by their names
    lineage         the parents of a segment
    chunks          time chunks; which moments of a file its deletion vector hides whole
"""
