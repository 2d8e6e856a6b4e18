"""What `kubectl tandem` prints.

Pure.

    overview     tables of resources
    render       details of a resource
    result_line  one line for a result
    redact       removes secrets
"""
