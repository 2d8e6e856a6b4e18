"""All that knows Kubernetes: the operator, and the stand-in for a Spark operator.

Handlers are thin; what an operation does is decided in `tandem.operations`, which knows no
cluster. Nothing below this package may import it.
"""
