"""The program of an `IndexServer`.

It has no result, commits nothing, and never ends by itself.

    server     the driver
    executors  the executors, as tasks that do not end
"""
