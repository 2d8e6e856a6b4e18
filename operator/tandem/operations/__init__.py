"""The engine: one pure `step(state, event)` for every kind of operation, and what performs it.

    machine    room: the state machine; no I/O, no clock
    kinds      room: what is special about each kind: plan, job, change set
    session    room: performs the machine's effects for one operation, and commits
    rounds     room: small rests that the engine evaluates without a job
    attempt    room: the files of an operation, and what other operations must leave alone
    clean      room: `tandem clean`
    report     room: from what happened to the status and sentences for people
    tables     room: adopt or create a table; automatic compaction of it
    model      what one operation works with
    registry   how each kind is performed: an entry per kind
    ports      what it needs from outside: clock, processes, job runner, locks
    execute    runs one operation to its end
    runner     orders and runs many: `tandem run`, `tandem plan`

The command line, the operator or the simulator drives it and performs the effects; each effect is
a named point at which a test can kill, delay, repeat it or lose its answer.
"""
