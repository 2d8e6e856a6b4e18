"""The files of an operation below `_tandem`: their paths, their formats, and which are needed.

Never commits, and never deletes a file that a commit refers to.

    paths     their paths
    records   the small JSON files
    garbage   removes what no commit refers to
"""
