"""The command line: `tandem`.

Thin: parses the arguments, calls the layers below, prints what they return. Messages go to
standard error; standard output holds results only. Heavy imports (Arrow, Spark, the engine) are
inside the functions that need them, so that `tandem --help` starts quickly.

    main             the entry point
    app              the commands and their options
    commands         package: what the commands do
    direct           package: commands that do one thing to one table
    history          package: `tandem history` and `tandem timeline`
    kubectl          package: `kubectl tandem`
    errors           exit codes and error messages
    logs             log lines on standard error
    options          options that several commands share
    output           colours and formats
    plan_report      what `plan` prints
    report           what `run` prints: progress and results
    scan_filter      `scan --where`
"""
