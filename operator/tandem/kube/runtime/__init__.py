"""What one operator process shares: context, leadership, threads, settings.

Must not import the controllers. Only `kopf_internals` uses private parts of kopf.

    context         the shared parts
    settings        the administrator's settings
    table_memory    how much memory one table may take
    leader          leader election
    restoration     detects that the API server was restored from a backup
    workers         threads that work on tables
    worker_places   which calls on tables run
    fair_queue      a queue in which namespaces and tables take turns
    job_slots       how many jobs run at once, of whom
    automatic_slots how many automatic ones do
    garbage         how often Python looks for garbage, and free memory is given back
    log_context     resource fields of log lines
    health          /healthz, /readyz and /metrics
    kopf_internals  the private parts of kopf that we use
"""
