"""Everything that knows Kubernetes: the operator, and the stand-in for a Spark operator.

Handlers are thin; what an operation does is decided in `tandem.operations`, which knows no
cluster. Nothing below this package may import it.

    client         room: the Kubernetes API, our kinds, events, the cache of resources
    metrics        room: Prometheus metrics
    tables         room: a table in the operator
    runtime        room: what one operator process shares
    controllers    room: the controllers of operations and of tables
    dev            room: `tandem dev`
    handlers       what kopf calls
    kopf_loop      runs kopf in this process
    state_metrics  values that a scrape computes
    operator       one operator process, put together
"""
