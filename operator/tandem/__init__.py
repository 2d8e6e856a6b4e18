"""Tandem: table services for Delta Lake tables while they are being written.

Imports go down only: `make check` enforces the layers, and docs/architecture.md has a picture of
them. This package must never be importable through its parent folder `operator/`, which would
shadow the standard library's module of that name.

    cli         package: the command line, `tandem` and `kubectl tandem`
    kube        package: the operator
    operations  package: the engine
    spark       package: the Spark jobs, and how they are started
    index       package: counts, bounds and pruning by what the log says
    jobs        package: formats that engine and jobs exchange
    planning    package: what to compact, stitch and merge, and when
    reconcile   package: reconciliation with concurrent commits
    mergelog    package: merge-on-read: the log of a table, and the merged view
    rowmap      package: where each row of a rewritten file is
    timeline    package: segments and time chunks
    pruning     package: which files a condition may affect
    statements  package: `where` and `set`
    locks       package: which operations may run at the same time
    catalogs    package: tables by their names in catalogs
    delta       package: the Delta protocol
    storage     package: object stores
    spec        package: the resources, and their status
    remedies    what each reason means, and what to do about it
    errors      every error and reason
    distinct    numbers of distinct rows
    exports     names of a package that are imported at their first use
    intervals   intervals of time, and sets of them
    json_types  types of parsed JSON
    text        foreign names in messages
"""

__version__ = "0.1.0"
