"""The controllers of operations and of tables.

Modules:

    operation  package: the controller of an operation's resource
    table      package: the controller of a LakeTable
"""
