"""Jobs as processes on this machine.

Does not read the result of a job: the engine does.

    local  `spark-submit` processes
"""
