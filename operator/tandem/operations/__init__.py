"""The engine: one pure `step(state, event)` for every kind of operation, and what performs it.

Does not depend on Kubernetes: the command line, the operator or the simulator drives it. Each
effect is a named point at which a test can kill the process, delay or repeat the effect, or lose
its answer.

    machine    package: the state machine; no I/O, no clock
    kinds      package: the logic of each kind: plan, job, change set
    session    package: performs the machine's effects for one operation, and commits
    attempt    package: the files of an operation, and what other operations must leave alone
    clean      package: `tandem clean`
    report     package: status, result and summary of an operation
    tables     package: adopt or create a table; automatic compaction of it
    model      the data of one operation
    edits      the edits that an attempt has made
    rounds     the port for small rounds, which the engine evaluates without a job
    small_rounds  its implementation over Arrow
    registry   the implementation of each kind
    ports      dependencies: clock, processes, job runner, locks
    execute    runs one operation to its end
    runner     orders and runs many: `tandem run`, `tandem plan`
    maintain   runs what is due on a table: `tandem maintain`
"""
