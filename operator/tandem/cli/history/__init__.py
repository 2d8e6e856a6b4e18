"""Pictures of a table's log: `tandem history` draws commits and how operations reconciled with each
other, `tandem timeline` segments over time.

Reads the log only: never a data file, a lock or a file of an operation.

    command         `history`: the table and its small picture
    model           commits and segments over versions
    page            a history as an HTML page
    scene           layout of the page's picture
    svg             drawing of the page's picture
    timeline        `timeline`, and its picture
    timeline_model  segments over time, and changes of segments
"""
