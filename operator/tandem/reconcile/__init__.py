"""Reconciliation: merging a change set with everything committed since it was planned.

Pure: no I/O, no clock, no Kubernetes. The rules are tables in `rules`; `rewrite` and `statement`
apply them.

    model            the values that reconciliation works on
    rules            the rules as tables
    classify         what a foreign commit did, by its actions: to files, schema, protocol, metadata
    rewrite          the rule for rewrites
    published        the row map of a commit with edits
    replace          the rule for replaces
    feed             the rule for the change data feed
    statement        the rule for update, delete and merge
    outcomes         the input and the results of that rule; bounds on rounds and attempts
    matches          which rows a statement matched; rows of a later version that were live before
"""
