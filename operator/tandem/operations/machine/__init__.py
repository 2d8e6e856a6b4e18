"""The state machine of an operation: `step(state, event) -> (state, effects)`.

Pure: no I/O, no clock, no randomness. All of its input arrives as events.

    step           the machine: which transition follows from which event
    state          its state, in groups
    events         its outputs (effects, at named points), and its inputs
    phases         transitions: what was found, plan, locks, job, commit, ends without one
    transitions    what they share: ask for an effect, end, give up an attempt, succeed; failures of
                   effects, stop requests
"""
