"""The command line: `tandem`.

Thin: parses the arguments, calls the layers below, prints what they return. Messages go to
standard error; standard output holds results only. Heavy imports (Arrow, Spark, the engine) are
inside the functions that need them, so that `tandem --help` starts quickly.

    main            the entry point
    app             the commands and their options
    commands        package: what the commands do
    direct          package: commands that do one thing to one table
    history         `tandem history`: the table and its small picture
    history_model   commits and segments over versions
    history_page    a history as an HTML page
    history_svg     layout and drawing of the page's picture
    timeline        `tandem timeline`, and its picture
    timeline_model  segments over time, and changes of segments
    kubectl         package: `kubectl tandem`
    errors          exit codes and error messages
    output          colours and formats; log lines on standard error
    plan_report     what `plan` prints
    report          what `run` prints: progress and results
"""
