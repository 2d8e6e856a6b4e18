"""What one operator process shares: context, leadership, threads, settings.

Must not import the controllers. Only `kopf_internals` uses private parts of kopf.

    context           the administrator's settings, and the shared parts
    controller_tasks  the tasks that control resources, and the subject of their log lines
    leader            leader election; detects that the API server was restored from a backup
    threads           threads that work on tables, and which table each of a child works on
    slots             fair queues, slots of jobs and of automatic operations
    small_jobs        jobs that a child does itself, without a SparkApplication
    tenants           which child a table has, with which credentials, and what it may read
    kopf_internals    the private parts of kopf that we use
"""
