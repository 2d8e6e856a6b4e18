"""The files of an operation below `_tandem`: where they lie, their formats, who needs them.

Modules:

    paths     where they lie
    records   the small JSON files
    sidecars  verified files beside a job's result
    pins      what unfinished operations need
    garbage   removes what no commit refers to
"""
