"""`tandem clean`, and the operator's rounds: removes files that no reader needs any more.

Modules:

    clean        a round: facts, decision, deletion
    facts        the operations of a table, and the files that are gone
    log_history  who removed a file, and when
"""
