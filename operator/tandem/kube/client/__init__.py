"""The Kubernetes API: requests, watches, our kinds.

Decides nothing.

    api             requests: typed errors, retries
    connections     what carries requests: the official package's client
    credentials     kubeconfig and in-cluster login
    watch           list and watch
    json_depth      reads deeply nested JSON
    kinds           our kinds as Kubernetes names them
    events          Kubernetes Events
    resource_cache  our resources, in memory
"""
