"""Access to object stores: local disk, S3, GCS, Azure, all through `obstore`.

Knows paths, bytes and put-if-absent; knows nothing of Delta. Nothing above this package may
open a file or a connection to a store by other means.
"""
