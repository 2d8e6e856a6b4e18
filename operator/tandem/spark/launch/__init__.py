"""Jobs as processes on this machine.

Does not read what a job writes: its result is for the engine.

    local  `spark-submit` processes
"""
