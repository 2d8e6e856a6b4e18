"""One module for each command of `tandem`.

A command checks its arguments, calls the layers below and prints what they return. It never decides
what happens to a table.

    arguments         arguments that several commands have
    run               `run` and `plan`
    scan              `scan`
    clean             `clean`
    log               `log`
    dev               `dev`
    etcd              `etcd`
    index             `index`
    index_app         its commands and options
    index_serve       `index serve`
    operator          `operator`
    operator_options  its options
    tables            `table` and `locks`
"""
