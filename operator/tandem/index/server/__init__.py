"""The index of tables as a service: every driver and engine asks one cache.

A caller names a table, never a location. The service reads logs and footers, never a data page:
what the log leaves open is the caller's to read, with its own credentials.

    messages       questions and answers on the wire
    calls          the body of a call, and an answer
    service        answers questions, without a network
    answer_files   large answers in files, until they are fetched
    transport      Arrow Flight: the only module that knows it
    client         server, then the caller's own process, then every file

The service may have executors, which hold the facts of shards (decision 0163):

    shards         which shard a segment belongs to
    table_shards   the shards of one table, from version to version
    coordinator    knows which executor holds which shard
    registry       the executors that live
    asking         asks them, all at once
    replies        whether a reply can be believed
    slots          an executor as its coordinator sees it
    slot_messages  what the two say to each other
    executor       narrows files of its shards
    held_shards    the facts that it holds, below a limit
    registration   how executors come and go
"""
