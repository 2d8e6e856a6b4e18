"""What a store's client reports, as one of our errors.

The store's own code (`NoSuchBucket`, `SignatureDoesNotMatch`, `ContainerNotFound`, …) is kept,
since it is what people search for. The client's texts contain pages of request internals: only the
status, the code and the message of an answer are shown, or the first line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from tandem.errors import (
    AccessDenied,
    AlreadyExists,
    BucketNotFound,
    InvalidSpec,
    ObjectNotFound,
    OutcomeUnknown,
    StorageError,
    StorageFull,
)
from tandem.remedies import CREDENTIALS, SKIP_SIGNATURE

CLIENT_ERRORS = (BaseError, FileNotFoundError, PermissionError, TimeoutError, ConnectionError)
"""All that a client raises. It reports a missing object as the built-in FileNotFoundError."""

# Whole phrases: the texts also contain durations and request ids with arbitrary digits.
_FULL = (
    "507 Insufficient Storage",
    "InsufficientStorage",
    "QuotaExceeded",
    "XMinioStorageFull",
    "os error 28",
)
_UNDECIDED = "ConditionalRequestConflict"
_DENIED = ("403 Forbidden", "401 Unauthorized", "AccessDenied")
# Stores answer these by other statuses than 401 and 403, too.
_DENIED_CODES = frozenset(
    {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "AuthorizationHeaderMalformed"}
)
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound", "FilesystemNotFound"})
_REMEDIES: Mapping[str, str] = {
    "SignatureDoesNotMatch": "Check the secret key: it is not that of the access key. A proxy that "
    "changes headers has the same effect",
    "InvalidAccessKeyId": "Check the access key, and that the endpoint is that of the store which "
    "issued it",
    "ExpiredToken": "Renew the credentials",
    "InvalidToken": "Renew the credentials, or remove a session token that is not theirs",
    "RequestTimeTooSkewed": "Correct the clock of this machine",
    "AuthorizationHeaderMalformed": "Set the option region to that of the bucket",
    "AuthorizationPermissionMismatch": "Give the identity a role on the container, such as "
    "Storage Blob Data Contributor",
    "PublicAccessNotPermitted": "Give credentials: the account allows no anonymous access",
}
_STATUS = re.compile(r"status code: (\d{3}[^:\n]{0,40})")
_CODE = re.compile(r"<Code>\s*([A-Za-z0-9_.]{1,80})\s*</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{0,300})")
_INTERNALS = "\n\nDebug source:"
_OF_THE_MACHINE = re.compile(
    r"Error performing [A-Z]+ https?://(?:169\.254\.170\.\d+[:/]|[^/\s]+/(?:"
    r"latest/api/token|latest/meta-data/iam/|computeMetadata/v1/|metadata/identity/oauth2/token))"
)
"""A request for the identity of the machine or the pod: what clients try without credentials."""
_GIVE_CREDENTIALS: Mapping[str, str] = {
    "s3": f"Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in {CREDENTIALS.in_resource}, or "
    "AWS_PROFILE in the environment; a bucket that all may read needs "
    f"{SKIP_SIGNATURE.in_resource}",
    "gs": f"Set GOOGLE_SERVICE_ACCOUNT_KEY in {CREDENTIALS.in_resource}, or "
    "GOOGLE_APPLICATION_CREDENTIALS in the environment; a bucket that all may read needs "
    f"{SKIP_SIGNATURE.in_resource}",
    "abfss": "Set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_KEY in "
    f"{CREDENTIALS.in_resource}, or AZURE_USE_AZURE_CLI=true in the environment",
}
"""By the scheme of a location."""
_NOT_BUILT = "builder error"
_NO_TLS = "BadScheme"
_NO_REGION = "redirect without LOCATION"
# What the client says about settings, and what is wrong with them.
_SETTINGS: Mapping[str, str] = {
    "Missing SecretAccessKey": "an access key without a secret key",
    "Missing AccessKeyId": "a secret key without an access key",
    "Unable to open service account file": "a file of credentials that cannot be opened",
    "Unable to decode service account file": "a service account's key that is no such JSON",
    "SAS query pair": "a SAS token that is no query string",
    "Invalid encryption key": "an encryption key that is not base64 of 32 bytes",
    "Invalid Zone suffix": "a directory bucket (s3_express) whose name has no zone",
    "Account must be specified": "no storage account: name it in the location or as account_name",
    "Unknown credential type": "an unknown credential_type",
    "No certificates found": "certificates that are not PEM",
    _NOT_BUILT: "certificates, a proxy or a header that the client cannot use",
}


def translated(error: Exception, resource: str, *, writing: bool = False) -> StorageError:
    """The error to raise for one of `CLIENT_ERRORS` about an object or a folder."""
    answer = str(error).split(_INTERNALS, 1)[0]
    code = code_of(answer)
    text = _shown(str(error), answer, code)
    what = {"resource": resource, "found": text}
    if _OF_THE_MACHINE.search(str(error)):
        # Nothing was sent to the store. The machine's service may be down for a while only.
        return StorageError(
            "there are no credentials for this store",
            resource=resource,
            found=f"no key in {CREDENTIALS.in_resource}, and no identity of this machine or pod",
            expected="credentials",
            remedy=_GIVE_CREDENTIALS.get(resource.partition("://")[0], ""),
        )
    if _UNDECIDED in str(error):
        # S3: another put of this name is under way. It may still fail, so no put has won.
        return OutcomeUnknown(
            "the store is still deciding about another put of the same name",
            **what,
            remedy="Check whether the object is there before trying again",
        )
    if isinstance(error, (AlreadyExistsError, PreconditionError)):
        return AlreadyExists("there is an object of this name", **what)
    if _is_denied(error, text, code):
        return AccessDenied(
            "permission denied",
            **what,
            expected="credentials that may " + ("write" if writing else "read"),
            remedy=_REMEDIES.get(
                code,
                f"Check the credentials in {CREDENTIALS.in_resource}, and the bucket's policy",
            ),
        )
    if code in _NO_BUCKET or (isinstance(error, FileNotFoundError) and writing):
        return BucketNotFound(
            "the bucket does not exist", **what, remedy="Create it or correct the location"
        )
    if isinstance(error, FileNotFoundError):
        return ObjectNotFound("no such object", **what)
    if any(word in text for word in _FULL):
        return StorageFull(
            "there is no room left to write",
            **what,
            expected="free space in the store",
            remedy="Free some space or raise the quota, then run again",
        )
    return _not_as_expected(str(error), what, writing=writing)


def _not_as_expected(full: str, what: dict[str, str], *, writing: bool) -> StorageError:
    if _NOT_BUILT in full:
        # Nothing was sent.
        return StorageError(
            "the client cannot make this request",
            **what,
            expected="an endpoint with TLS, or allow_http: true" if _NO_TLS in full else "",
            remedy="Check the endpoint, allow_http and the credentials, in the options, the "
            "Secret and the environment",
        )
    if _NO_REGION in full:
        return StorageError(
            "the bucket is in another region",
            **what,
            expected="the region of the bucket",
            remedy="Set the option region",
        )
    if writing:
        return OutcomeUnknown(
            "the store did not answer a put, so it may have happened or not",
            **what,
            expected="an answer",
            remedy="Check whether the object is there before trying again",
        )
    return StorageError(
        "the store did not answer as expected",
        **what,
        expected="an answer",
        remedy="Check the endpoint, the bucket and the network",
    )


def replaced(resource: str, e_tag: str) -> StorageError:
    """The error to raise where an object that is copied is no longer the version with this tag."""
    return StorageError(
        "an object was replaced while it was copied",
        resource=resource,
        found="another version",
        expected=f"the version {e_tag}",
        remedy="Run the operation again",
    )


def refused_settings(error: Exception, location: str) -> InvalidSpec:
    """The error to raise where a client cannot be made of its settings. It does not repeat the
    client's text, which may hold them."""
    text = str(error)
    known = (found for phrase, found in _SETTINGS.items() if phrase in text)
    return InvalidSpec(
        "the store's client refuses these options or credentials",
        resource=location,
        field="spec.storage",
        found=next(known, type(error).__name__),
        expected="options and keys as in the store's documentation",
        remedy="Correct spec.storage.options, the Secret or the environment",
    )


def code_of(answer: str) -> str:
    """The code in the body of an answer, in XML or JSON; "" if there is none."""
    found = _CODE.search(answer)
    if found is not None:
        return found[1]
    body = _json_of(answer)
    error = body.get("error", body)
    if isinstance(error, str):
        return error[:80]  # of a token server
    if not isinstance(error, dict):
        return ""
    reasons = error.get("errors")
    first = reasons[0] if isinstance(reasons, list) and reasons else error
    code = first.get("reason") or first.get("code") if isinstance(first, dict) else None
    return str(code or "")[:80]


def _json_of(answer: str) -> dict[str, object]:
    _, brace, body = answer.partition("{")
    try:
        found = json.loads(brace + body)
    except (ValueError, RecursionError):
        return {}  # no JSON: a page of a proxy, or nothing
    return found if isinstance(found, dict) else {}


def _shown(full: str, answer: str, code: str) -> str:
    """What a message may show: one line."""
    if code:
        status, message = _STATUS.search(answer), _MESSAGE.search(answer)
        said = " ".join(message[1].split()) if message is not None else ""
        named = f"{status[1].strip()}, {code}" if status is not None else code
        return f"{named}: {said}" if said else named
    line = answer.split("\n", 1)[0][:500]
    reason = "connections without TLS are not allowed" if _NO_TLS in full else "invalid request"
    return line.replace(_NOT_BUILT, reason)


def _is_denied(error: Exception, text: str, code: str) -> bool:
    kinds = (PermissionDeniedError, UnauthenticatedError, PermissionError)
    return (
        isinstance(error, kinds) or code in _DENIED_CODES or any(word in text for word in _DENIED)
    )
