"""What the commands of `tandem` do.

A command checks its arguments, calls the layers below and prints what they return. It never decides
what happens to a table.

    arguments         arguments and options that several commands have
    target            the table that a command is about
    run               `run` and `plan`
    scan              `scan`
    tables            `table`, `locks`, `clean` and `log`
    index             `index`, and the conditions of `scan --where`
    index_serve       `index serve`
    operator          `operator`, `dev` and `etcd-user`, and their options
"""
