"""Code shared by all jobs: the job and its result, a session, and a table's rows.

Must not import a job or a source. Credentials come from the environment only.

    control       reads the job, writes the result exactly once; progress, Arrow tables
                  as bytes
    session       finds Java, pins the session's settings, ends a job whose engine has ended
    jvm           a JVM beside this process
    frames        rows of a table as DataFrames; work in Spark's tasks, its answers, and the
                  exchange of blocks between tasks
    datasource    the data source over our reader; what each task reads; Spark's schema of a table
    row_files     writes rows to data files; where each row went
    identity      values of identity columns in new rows
    written_facts facts of these files, for the index
    listing       the files at a location, the columns in names of folders, schemas of Parquet files
"""
