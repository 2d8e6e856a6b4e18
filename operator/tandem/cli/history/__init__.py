"""`tandem history`: the commits of a table, and how operations reconciled with each other.

Reads commits only: never a data file, a lock or a file of an operation.

    command   the command
    model     commits and segments over versions
    terminal  output as text
    page      output as an HTML page
    scene     layout of the picture
    svg       drawing of the picture
    phrases   sentences
"""
