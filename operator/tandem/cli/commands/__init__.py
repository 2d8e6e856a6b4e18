"""One module for each command of `tandem`.

Modules:

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
