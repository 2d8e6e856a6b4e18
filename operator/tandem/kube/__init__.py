"""Everything that depends on Kubernetes: the operator, and the stand-in for a Spark operator.

Handlers are thin; `tandem.operations`, which does not depend on Kubernetes, decides what an
operation does. The layers below this package must not import it.

    client       room: the Kubernetes API, our kinds, events, the cache of resources
    metrics      room: Prometheus metrics
    tables       room: a table in the operator
    runtime      room: what one operator process shares
    controllers  room: the controllers of operations and of tables
    dev          room: `tandem dev`
    handlers     kopf's handlers
    kopf_loop    runs kopf in this process
    scrape       metrics computed at each scrape
    operator     assembles one operator process
"""
