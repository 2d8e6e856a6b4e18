"""The controllers of operations, of tables and of index servers.

They do not decide what an operation does, what is compacted or what is deleted: `tandem.operations`
and `tandem.planning` do.

    operation     package: the controller of an operation's resource
    table         package: the controller of a LakeTable
    index_server  package: the controller of an IndexServer
"""
