"""The table as kinds of operations see it: live files, commits since, changes, names of segments.

Decides nothing about an operation.

    job_files           from live files to job inputs, from job outputs to `add` actions
    commit_history      what was committed since a version
    heirs               files that hold what is left of inputs that are gone
    table_changes       schema and protocol changes in between
    sources             sources: their columns, and the version of a Delta table
    prerequisite_merge  the log merge that has to end before a statement plans
    row_scope           the rows of files that a replace concerns
    time_column         the table's time column in its files
"""
