"""Automatic compaction: what to start now, what comes next, and why nothing runs now.

Pure: the input is facts and a time, the output a decision.

    decide             the decision
    model              its facts and results
    child_compactions  the `TableCompaction`s that it makes
    schedule_times     when a schedule fires, and when a window is open
"""
