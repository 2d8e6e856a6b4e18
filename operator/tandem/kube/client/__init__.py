"""The Kubernetes API: requests, watches, our kinds.

Decides nothing.

    api             requests: typed errors, retries
    connections     TLS, proxy and sockets: the official package's client
    credentials     kubeconfig and in-cluster login
    watch           list and watch
    json_depth      reads deeply nested JSON
    kinds           names of our kinds, and fields of their objects
    events          Kubernetes Events
    resource_cache  our resources, in memory
"""
