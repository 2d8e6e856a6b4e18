"""The base: the entries of a version, written down, so that the next process need not parse the
log. It is never needed: whatever is wrong with one, the log is read instead.

    packed   a base as bytes
    bases    the bases of a table, in its store
"""
