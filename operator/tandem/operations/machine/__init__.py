"""The state machine of an operation: `step(state, event) -> (state, effects)`.

Pure: no I/O, no clock, no randomness. All of its input arrives as events.

    step           the machine: which transition follows from which event
    state          its state, in groups
    events         its inputs
    phases         transitions: what the log and earlier sessions say
    transitions    what they share: ask for an effect, end, give up an attempt, succeed
"""
