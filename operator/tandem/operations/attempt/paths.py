"""The paths of an operation's files, relative to the table. Pure text.

    _tandem/operations/<id>/operation.json                  its identity
    _tandem/operations/<id>/result.json                     how it ended
    _tandem/operations/<id>/ending.json                     how it is about to end in failure
    _tandem/operations/<id>/source.json                     what a merge reads
    _tandem/operations/<id>/cutoff.json                     the version that a replace starts from
    _tandem/operations/<id>/batches.json                    how a compaction is cut into commits
    _tandem/operations/<id>/attempts/<n>/attempt.json       who claimed the attempt
    _tandem/operations/<id>/attempts/<n>/{plan,job}.json    its frozen plan
    _tandem/operations/<id>/attempts/<n>/progress.json      how far its job is
    _tandem/operations/<id>/attempts/<n>/done.json          its job serves no more rounds
    _tandem/operations/<id>/attempts/<n>/ended.json         why it ended without a commit
    _tandem/operations/<id>/attempts/<n>/rounds/<k>/…       the job's requests and results
    _tandem/rowmaps/<id>-<n>.rowmap                         where its rows went
    _tandem/dv/<id>-<n>/…                                   deletion vectors of its commit
    _tandem/holds/…                                         holds of readers
    _tandem/index/facts/<id>-<n>/…                          facts of its data files, for the index
    _tandem/index/base/…                                    files of a version, for the index
    <id>-<n>/…                                              data files

All files that only one attempt writes have paths that only this attempt uses, so that cleaning
deletes whole folders. Vacuum of other engines ignores folders that begin with `_`.
"""

from __future__ import annotations

import hashlib
import re

ROOT = "_tandem"
FACTS = f"{ROOT}/index/facts"
"""As of `tandem.index.facts.files`, which is not imported here."""
MOST_ATTEMPTS = 999
"""The most attempts of one run of an operation. Numbers are read from file names and from the log,
which other writers can fill with anything: all attempts up to a number are cleaned, and a number
must fit into a `txn`."""
_ATTEMPT = re.compile(r"/attempts/([1-9][0-9]{0,2})/(.+)$")


def operation_id(namespace: str, kind: str, name: str, spec_hash: str, run: int = 1) -> str:
    """The operation id of a resource; the same resource has the same id. `run` counts `--again`."""
    text = "/".join((namespace, kind, name, spec_hash))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return digest if run == 1 else f"{digest}r{run}"


def operations() -> str:
    return f"{ROOT}/operations"


def operation(operation_id: str) -> str:
    return f"{operations()}/{operation_id}"


def identity(operation_id: str) -> str:
    return f"{operation(operation_id)}/operation.json"


def ending(operation_id: str) -> str:
    return f"{operation(operation_id)}/ending.json"


def result(operation_id: str) -> str:
    return f"{operation(operation_id)}/result.json"


def cutoff(operation_id: str) -> str:
    return f"{operation(operation_id)}/cutoff.json"


def batches(operation_id: str) -> str:
    return f"{operation(operation_id)}/batches.json"


def attempts(operation_id: str) -> str:
    return f"{operation(operation_id)}/attempts"


def attempt(operation_id: str, attempt_: int) -> str:
    return f"{attempts(operation_id)}/{attempt_}"


def claim(operation_id: str, attempt_: int) -> str:
    return f"{attempt(operation_id, attempt_)}/attempt.json"


def plan(operation_id: str, attempt_: int) -> str:
    return f"{attempt(operation_id, attempt_)}/plan.json"


def job(operation_id: str, attempt_: int) -> str:
    return f"{attempt(operation_id, attempt_)}/job.json"


def progress(operation_id: str, attempt_: int) -> str:
    return f"{attempt(operation_id, attempt_)}/progress.json"


def done(operation_id: str, attempt_: int) -> str:
    return f"{attempt(operation_id, attempt_)}/done.json"


def ended(operation_id: str, attempt_: int) -> str:
    return f"{attempt(operation_id, attempt_)}/ended.json"


def rounds(operation_id: str, attempt_: int) -> str:
    return f"{attempt(operation_id, attempt_)}/rounds"


def round_file(operation_id: str, attempt_: int, round_: int, name: str) -> str:
    """`name` is `request.json`, `result.json` or `failure.json`."""
    return f"{rounds(operation_id, attempt_)}/{round_}/{name}"


def data(operation_id: str, attempt_: int) -> str:
    return f"{operation_id}-{attempt_}"


def deletion_vectors(operation_id: str, attempt_: int) -> str:
    return f"{ROOT}/dv/{operation_id}-{attempt_}"


def facts(operation_id: str, attempt_: int) -> str:
    return f"{FACTS}/{operation_id}-{attempt_}"


def row_map(operation_id: str, attempt_: int) -> str:
    return f"{ROOT}/rowmaps/{operation_id}-{attempt_}.rowmap"


def job_name(operation_id: str, attempt_: int) -> str:
    """Name of an attempt's Spark application: a DNS label."""
    return f"tandem-{operation_id}-{attempt_}"


def split_attempt(path: str) -> tuple[int, str] | None:
    """The attempt's number, and the rest of the path, of a file below `attempts`."""
    match = _ATTEMPT.search(path)
    return (int(match[1]), match[2]) if match else None


ID = r"([0-9a-f]{16}(?:r[1-9]\d*)?)"
"""A group of regular expressions that an operation id matches."""


def operation_of_app(app_id: str) -> str:
    """The operation that a `txn` application id belongs to; "" for those of other writers."""
    match = re.fullmatch(rf"tandem:{ID}(?::abandoned|:closed|:batches)?", app_id)
    return match[1] if match else ""


def success_app(operation_id: str) -> str:
    """`txn` application id whose version is the attempt that succeeded."""
    return f"tandem:{operation_id}"


def closed_app(operation_id: str) -> str:
    """`txn` application id that says: ended without success, no further attempt may commit."""
    return f"tandem:{operation_id}:closed"


def abandoned_app(operation_id: str) -> str:
    """`txn` application id whose version is the highest abandoned attempt."""
    return f"tandem:{operation_id}:abandoned"


def batches_app(operation_id: str) -> str:
    """`txn` application id whose version is the number of the last batch that was committed."""
    return f"tandem:{operation_id}:batches"
