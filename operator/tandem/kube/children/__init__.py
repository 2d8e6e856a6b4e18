"""Child processes of the operator, one for each tenant, in which the controllers of its tables and
operations run. A child does nothing in the cluster itself: it asks the operator, which does only
what is the tenant's.

    processes   begins children, has resources controlled, ends and kills children
    process     one child as the operator sees it, and what it has started
    services    what the operator does of what a child asks for
    link        messages between the two, as lines of JSON
    ports       what a child has of the operator: API server, locks, slots, Spark jobs, metrics
    start       what a child is begun with, and how much memory it may have
    child       the child: its bounds, its environment, its controllers
    template    what children have imported before they are forked
"""
