"""Automatic compaction and retention: what to start now, what comes next, and why nothing runs now.

Pure: the input is facts and a time, the output a decision.

    decide             the decision about compactions of the table, and the times of a schedule
    chunks             which time chunks are due, as a part of that decision
    retention          the decision about dropping old rows
    log                the decision about log compactions and merges of its log
    indexed_table      what the decision asks of a table, kept from version to version
    facts              its facts and results; the operations that it creates
"""
