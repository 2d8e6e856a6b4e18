"""`tandem timeline`: what a table shows when, as the pictures of the Druid analysis draw it.

Reads the log only: never a data file, a lock or a file of an operation.

    command   the command
    model     the picture and the versions as data
    drawing   the picture as text
"""
