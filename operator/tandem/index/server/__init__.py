"""The index of tables as a service: every driver and engine asks one cache.

A caller names a table, never a location. The service reads logs and footers, never a data page:
what the log leaves open is the caller's to read, with its own credentials.

    messages      questions and answers on the wire, and the program's arguments
    calls         the body of a call, and an answer; large ones in files, until they are fetched
    service       answers questions, without a network
    access        who may ask
    transport     Arrow Flight: the only module that knows it
    client        server, then the caller's own process, then every file

Executors hold the facts of shards, and narrow files to row groups. The coordinator alone knows
versions, and decides which files an answer has; an executor that is slow, dead or wrong costs
narrowing, never a row (decision 0163).

    coordinator        knows which executor holds which shard, and asks all at once
    shards             which shard a segment belongs to, and which executor holds which shard
    executor           narrows files of its shards; what it and the coordinator say to each other
    registration       how executors come and go: those that live, and how they are reached
"""
