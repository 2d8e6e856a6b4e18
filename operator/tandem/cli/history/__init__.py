"""`tandem history`: what was committed to a table, and what was replayed onto what.

Modules:

    command   the command
    model     commits and segments over versions
    terminal  as text
    page      as an HTML page
    scene     its picture, laid out
    svg       its picture, drawn
    phrases   sentences
"""
