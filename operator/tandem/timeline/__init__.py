"""Segments of a table as a pure function of its log: names, order, lineage, time chunks.

No I/O and no clock: everything here works on Delta actions that were read elsewhere.

    segments        segments and their tags
    segment_files   live files, kept by column
    file_intervals  which time chunks each file covers
    names           names and numbers of segments
    lineage         which segments came of which
    chunks          time chunks
    history         segments over versions
    live_tags       tags of live files, in columns
"""
