"""Paths of new data files: in the folder of their attempt, and there in folders of their partition
values, as Hive names them (decision 0197).

Delta gives no meaning to the paths of data files, but readers that open them by a scan of Parquet
files take partition values from such folders: Polars, for one.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from tandem.delta.partition_text import NULL_PARTITION

_ESCAPED: Final = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
"""What Hive and Spark escape in a folder's name (Spark's `ExternalCatalogUtils`)."""
_QUOTED: Final = re.compile(
    r"""[\x00-\x20"#%<>?\[\\\]^`{|}\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"""
)
"""What `java.net.URI` quotes in a path: all but its legal characters, and beyond ASCII control and
space characters alone."""
_LONGEST: Final = 255
"""Bytes of a folder's name that file systems allow."""
_LONGEST_OF_ALL: Final = 512
"""Bytes of all of them: a key of S3 has 1,024 at most."""


def new_path(prefix: str, values: Mapping[str, str | None], task: int) -> str:
    """The path of a new file, relative to the root and decoded:
    `<prefix>/<column>=<value>/part-<task>-<uuid4>.parquet`.

    Args:
        prefix: the folder of the attempt, without a slash at its end.
        values: partition values as they will be logged; left out if they are too long for a path.
    """
    folders = [
        f"{_escaped(name)}={NULL_PARTITION if value is None else _escaped(value)}"
        for name, value in values.items()
    ]
    sizes = [len(folder.encode()) for folder in folders]
    if any(size > _LONGEST for size in sizes) or sum(sizes) > _LONGEST_OF_ALL:
        folders = []
    return "/".join([prefix, *folders, f"part-{task:05d}-{uuid.uuid4()}.parquet"]).lstrip("/")


def logged(path: str) -> str:
    """How the log names the object at a path: percent-encoded (Delta's protocol, "Add File"), just
    where Java's `URI` encodes. Spark's VACUUM compares encoded paths: it deletes a live file that
    the log spells in another way."""
    return _QUOTED.sub(lambda found: quote(found[0], safe=""), path)


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
