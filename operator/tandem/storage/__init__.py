"""Access to object stores: local disk directly, S3, GCS and Azure through `obstore`.

Knows paths, bytes and put-if-absent, but not Delta. Nothing above this package may open a file or
a connection to a store by other means.

    store              the port, and file objects over it
    local              a folder on a local disk
    remote             S3, GCS and Azure
    s3                 copies of ranges inside of S3
    renewable          stores whose credentials are renewed while they are in use
    rooted             `open_store`, and whether a store has put-if-absent
    options            settings of a store's client
    time_limits        how long a request may take
    aws_profile        profiles of the AWS configuration files
    store_errors       what a client reports, as our errors
    allowed_locations  where tables and sources may lie
    paths              paths below a root
"""

from typing import TYPE_CHECKING

from tandem.exports import exports

if TYPE_CHECKING:
    from tandem.storage.rooted import open_store, probe_put_if_absent
    from tandem.storage.store import ObjectInfo, Store

__all__ = ["ObjectInfo", "Store", "open_store", "probe_put_if_absent"]

__getattr__ = exports(
    __name__,
    {
        "ObjectInfo": "store",
        "Store": "store",
        "open_store": "rooted",
        "probe_put_if_absent": "rooted",
    },
)
