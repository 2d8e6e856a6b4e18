"""Code shared by all jobs: the job and its result, a session, and a table's rows.

Must not import a job or a source. Credentials come from the environment only.

    control       reads the job, writes the result exactly once
    session       finds Java, pins the session's settings
    frames        rows of a table as DataFrames
    schemas       Spark's schema of a table
    datasource    the data source over our reader and writer
    row_files     writes rows to data files
    written_facts facts of these files, for the index
    input_splits  which files, or parts of a file, a task reads
    listing       the files at a location, and the columns in names of folders
    counters      progress of tasks
    ipc           Arrow tables as bytes
    names         quoted column names
    job_loop      local jobs one after the other
    parent_watch  ends a local job whose engine has ended
"""
