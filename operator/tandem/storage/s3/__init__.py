"""Copies ranges of S3 objects inside of the store, as parts of a multipart upload.

obstore has no part copy, so botocore makes these requests, where it is installed. Never imported
before a file of copied row groups is written to S3; it decides nothing but how bytes get there.

    client  a client of botocore with the identity and endpoint of obstore's
    upload  an upload of parts, some of which the store copies
"""
