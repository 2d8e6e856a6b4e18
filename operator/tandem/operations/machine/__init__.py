"""The state machine of an operation: `step(state, event) -> (state, effects)`.

Pure: no I/O, no clock, no randomness. Everything that it knows arrives as an event.

    step           the machine
    state          what it remembers
    events         what it learns
    effects        what it asks for
    transitions    begin an effect, end, give up an attempt, succeed
    failures       what follows when an effect fails
    stop_requests  cancel, deadline and shutdown
"""
