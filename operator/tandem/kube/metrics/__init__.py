"""The operator's metrics.

Never calls the API server or reads a table. No label names an operation: `families` lists the
values of each label, which bounds the number of series.

    families    every family
    collectors  their instruments, and a lock store that counts its calls
"""
