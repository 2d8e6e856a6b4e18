"""The operator's metrics.

Labels and the number of series are bounded in `families`.

    families    every family
    collectors  their instruments
    locks       a lock store that counts its calls
"""
