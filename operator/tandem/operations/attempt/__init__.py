"""The files of an operation below `_tandem`: their paths, their formats, and which are needed.

Never commits, and never deletes a file that a commit refers to.

    paths     their paths
    records   the small JSON files
    sidecars  verified files beside a job's result
    cutoffs   the version that a replace starts from
    pins      what unfinished operations need
    garbage   removes what no commit refers to
"""
