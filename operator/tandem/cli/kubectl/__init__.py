"""`kubectl tandem`: what people look at and ask for in a cluster, through its API server alone.

Acts as the user, with the user's rights: never reads a Secret, never talks to etcd, to a table's
store or (but for logs, health and metrics, through the API server) to a pod.
"""
