"""The command line: `tandem`.

Thin: parses the arguments, calls the layers below, prints what they return. Messages go to
standard error; standard output holds results only. Heavy imports (Arrow, Spark, the engine) are
inside the functions that need them, so that `tandem --help` starts quickly.

    main             the entry point
    app              the commands and their options
    commands         package: one module for each command
    direct           package: commands that do one thing to one table
    history          package: `tandem history`
    kubectl          package: `kubectl tandem`
    timeline         package: `tandem timeline`
    engine           imports the engine on demand
    errors           exit codes and error messages
    logs             log lines on standard error
    output           colours and formats
    plan_report      what `plan` prints
    progress         bars, or a line per change
    report           what `run` prints
    scan_filter      `scan --where`
    scan_output      formats of `scan`
    resource_filter  `--only`
    source_check     checks sources before a run
"""
