"""Everything that depends on Kubernetes: the operator, and the stand-in for a Spark operator.

Handlers are thin; `tandem.operations`, which does not depend on Kubernetes, decides what an
operation does. The layers below this package must not import it.

    client         package: the Kubernetes API, our kinds and resources, events
    metrics        package: Prometheus metrics
    children       package: processes in which the controllers run, one for each tenant
    tables         package: a table in the operator
    runtime        package: what one operator process shares
    controllers    package: the controllers of operations, tables and index servers
    dev            package: `tandem dev`
    handlers       kopf's handlers
    kopf_loop      runs kopf in this process
    state_metrics  metrics computed at each scrape
    operator       assembles one operator process
"""
