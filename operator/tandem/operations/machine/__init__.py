"""The state machine of an operation: `step(state, event) -> (state, effects)`.

Pure: no I/O, no clock, no randomness. All of its input arrives as events.

    step           the machine: which transition follows from which event
    state          its state, in groups
    events         its inputs
    startup        transitions: what the log and earlier sessions say
    execution      transitions: plan, locks, job
    committing     transitions: reconcile, commit, or end without a commit
    transitions    what they share: ask for an effect, end, give up an attempt, succeed
"""
