"""The Kubernetes API: requests, watches, our kinds.

Decides nothing.

    api          requests, lists and watches: typed errors, retries, deeply nested JSON
    credentials  kubeconfig and in-cluster login; TLS, proxy and sockets
    resources    names and fields of our kinds, and our resources in memory
    events       Kubernetes Events
"""
