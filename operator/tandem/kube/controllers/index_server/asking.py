"""What an index server says of its cache, asked with a deadline and in threads of its own: a server
that hangs must not take a thread from operations.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from tandem.errors import TandemError
from tandem.index.server.messages import CacheAnswer, IndexCall
from tandem.index.server.transport import Connection, Tls

DEADLINE_S = 2.0


@dataclass(frozen=True, slots=True)
class Asked:
    """`cache` is None if there was no answer: then `problem` says why. `asked` False: the server
    was not asked, since the operator has no token to present."""

    cache: CacheAnswer | None = None
    problem: str = ""
    asked: bool = True


def ask(endpoint: str, token: str, authorities: bytes) -> Asked:
    """Ask once. Blocks for `DEADLINE_S` at most.

    Args:
        authorities: certificates that the server's is checked by; b"" for those of this machine.
    """
    try:
        connection = Connection(
            endpoint,
            token=token,
            tls=Tls(authorities) if authorities else None,
            timeout_s=DEADLINE_S,
        )
        try:
            message, _ = connection.ask(IndexCall.SHOW_CACHE, b"{}")
        finally:
            connection.close()
        return Asked(CacheAnswer.model_validate(message))
    except TandemError as error:
        return Asked(problem=f"{error.message}: {error.found}" if error.found else error.message)
    except ValidationError:
        return Asked(problem="its answer is not that of this version")
