"""Automatic compaction: what to start now, what comes next, and why nothing runs now.

Pure: facts and a time go in, a decision comes out.

    decide             the decision
    model              its facts and results
    child_compactions  the `TableCompaction`s that it makes
    schedule_times     when a schedule fires, when a window is open
"""
