"""The controllers: one room for operations, one for tables.

Modules:

    operation  room: the controller of an operation's resource
    table      room: the controller of a LakeTable
"""
