"""Automatic compaction: what to start now, what comes next, and why nothing runs now.

Pure: the input is facts and a time, the output a decision.

    decide             the decision about compactions of the table
    log                the decision about log compactions and merges of its log
    model              its facts and results
    child_compactions  the children that they make
    child_history      how earlier children ended
    schedule_times     when a schedule fires, and when a window is open
"""
