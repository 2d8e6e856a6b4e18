"""The index of tables as a service: every driver and engine asks one cache.

A caller names a table, never a location. The service reads logs and footers, never a data page:
what the log leaves open is the caller's to read, with its own credentials.

    messages      questions and answers on the wire
    calls         the body of a call, and an answer
    service       answers questions, without a network
    answer_files  large answers in files, until they are fetched
    access        who may ask
    config        what the operator asks the program of a server to serve
    transport     Arrow Flight: the only module that knows it
    lake_table    the index that a LakeTable names
    client        server, then the caller's own process, then every file
    executors     package: who holds what footers say, and narrows files by it
"""
