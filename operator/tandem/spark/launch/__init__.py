"""Jobs as processes on this machine.

Modules:

    local  `spark-submit` processes
"""
