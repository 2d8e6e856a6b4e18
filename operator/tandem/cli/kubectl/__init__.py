"""`kubectl tandem`: inspects and changes resources in a cluster, through its API server alone.

Acts as the user, with the user's permissions: never reads a Secret, never connects to etcd, to a
table's store or (except for logs, health and metrics, through the API server) to a pod.

    main        the entry point; completions
    arguments   kubectl's own options, and names of resources
    access      the API server, as the user, and lists of resources
    commands    commands that read, and those that change a resource
    plan        `plan`
    report      `report`: a bundle for support
    redact      removes secrets from it
    overview    tables and operations, problems first
    render      what is printed
    complete    the completion binary
"""
