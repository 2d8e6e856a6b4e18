"""The controllers of operations and of tables.

They do not decide what an operation does, what is compacted or what is deleted: `tandem.operations`
and `tandem.planning` do.

    operation  package: the controller of an operation's resource
    table      package: the controller of a LakeTable
"""
