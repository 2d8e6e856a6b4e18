"""The engine: one pure `step(state, event)` for every kind of operation, and who performs it.

    state, events, effects         what the machine is told, remembers and asks for
    step, moves                    the machine; no I/O, no clock
    ports                          what it needs from outside: clock, processes, job runner, locks
    layout, records                where an operation's files lie, and their formats
    performer, publisher           perform one effect against the real world; commits
    session, driver                loops over them, for one operation
    run                            orders and starts many: `tandem run`, `tandem plan`
    compaction, segment_rewrite, update, merge, ingest
                                   what is special about each kind: plan, job, change set
    by_row                         what updates, deletes and merges share
    small_rounds, arrow_rounds     rests that the engine evaluates itself; source_copy is what it
                                   knows of a merge's source
    table                          adopt or create a table

Whoever drives it (command line, operator, simulator) performs the effects; each is a named
point at which a test can kill, delay, repeat it or lose its answer.
"""
