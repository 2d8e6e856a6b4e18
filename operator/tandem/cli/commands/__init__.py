"""One module for each command of `tandem`.

A command checks its arguments, calls the layers below and prints what they return. It never decides
what happens to a table.

    run               `run` and `plan`
    scan              `scan`
    clean             `clean`
    log               `log`
    dev               `dev`
    etcd              `etcd`
    operator          `operator`
    operator_options  its options
    tables            `table` and `locks`
"""
