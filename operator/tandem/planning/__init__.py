"""What a compaction would do: pure functions from segments to runs and bins.

The same segments and the same request give the same plan. Nothing here reads a table or a clock,
or takes a lock.

    auto             package: automatic compaction
    plans            the values of planning, and chosen segments to runs
    compaction       the entry point: a request to a plan; the runs that CarbonData's loop over
                     levels makes
    major            one contiguous run up to a size; the files of a `SegmentRewrite`
    adjacency        whether the files of a run are adjacent loads
    layout           which bins a sort or z-order rewrites
    cleaning         which files may be removed, and why
"""
