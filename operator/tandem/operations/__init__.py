"""The engine: one pure `step(state, event)` for every kind of operation, and what performs it.

Does not depend on Kubernetes: the command line, the operator or the simulator drives it. Each
effect is a named point at which a test can kill the process, delay or repeat the effect, or lose
its answer.

    machine          package: the state machine; no I/O, no clock
    kinds            package: the logic of each kind: plan, job, change set
    session          package: performs the machine's effects for one operation, and commits
    clean            `tandem clean`, and the operator's rounds: facts, decision, deletion
    clean_log        the same for the log of a merge-on-read table
    clean_facts      the operations of a table; the files that are gone, who removed them and when
    attempt_files    files of an operation below `_tandem`: their paths, and small ones as formats
    garbage          removes what no commit refers to, and leaves alone what operations need
    model            the data of one operation; the edits that an attempt has made
    rounds           the port for small rounds, which the engine evaluates without a job
    small_rounds     its implementation over Arrow
    status           the state machine's state as `status`
    explain          fields of `result`, and the summary's sentences
    registry         the implementation of each kind
    ports            dependencies: clock, processes, job runner, locks
    adopt            adopt a table, or create it; its log as fields of the status
    auto_compaction  a table's facts for automatic compaction
    execute          runs one operation to its end
    runner           orders and runs many: `tandem run`, `tandem plan`
    maintain         runs what is due on a table: `tandem maintain`
"""
