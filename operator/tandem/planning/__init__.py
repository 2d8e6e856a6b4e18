"""What a compaction would do: pure functions from segments to runs and bins.

The same segments and the same request give the same plan. Nothing here reads a table or a clock,
or takes a lock.

    auto             package: automatic compaction
    model            the values of planning
    compaction       the entry point: a request to a plan
    minor            the runs that CarbonData's loop over levels makes
    merge_levels     that loop, for all chunks at once
    major            one contiguous run up to a size
    semi_major       everything in a time chunk
    custom           the segments or files that a request names
    segment_rewrite  the plan of a `SegmentRewrite`
    adjacency        whether the files of a run are adjacent loads
    runs             chosen segments to runs
    bins             files of a run to bins
    layout           which bins a sort or z-order rewrites
    skip_offset      `skipOffsetFromLatest`
    cleaning         which files may be removed, and why
"""
