"""What the commands of `tandem` do.

A command checks its arguments, calls the layers below and prints what they return. It never decides
what happens to a table.

    arguments         arguments that several commands have
    target            the table that a command is about
    run               `run` and `plan`
    scan              `scan`
    tables            `table`, `locks`, `clean` and `log`
    index             `index`
    index_app         its commands and options
    index_serve       `index serve`
    operator          `operator` and `dev`
    operator_options  the options of `operator` and `etcd-user`
"""
