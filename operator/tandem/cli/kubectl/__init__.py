"""`kubectl tandem`: inspects and changes resources in a cluster, through its API server alone.

Acts as the user, with the user's permissions: never reads a Secret, never connects to etcd, to a
table's store or (except for logs, health and metrics, through the API server) to a pod.

    main            the entry point
    flags           kubectl's own flags
    access          the API server, as the user
    names           kinds and names
    read_commands   commands that only read
    write_commands  commands that change a resource
    plan            `plan`
    queries         lists of resources
    report          `report`: a bundle for support
    complete        the completion binary
    completion      completions
    output          package: what is printed
"""
