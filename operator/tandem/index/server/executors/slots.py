"""An executor as its coordinator sees it: in another process, or in this one.

With `executors: 0` the coordinator has one in its own process. All else is the same program.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

import pyarrow as pa
from pydantic import ValidationError

from tandem.errors import Unreachable
from tandem.index.server.executors.executor import ExecutorService
from tandem.index.server.executors.slot_messages import (
    InvalidateQuestion,
    NarrowQuestion,
    NarrowReply,
    PrimeReply,
    ShardQuestion,
    SlotCache,
    SlotCall,
    body,
)
from tandem.index.server.messages import Message
from tandem.index.server.transport import Connection

M = TypeVar("M", bound=Message)


class Slot(ABC):
    """Every call raises: a TandemError if there is no answer in time; what executors raise."""

    @abstractmethod
    def narrow(
        self, asked: NarrowQuestion, files: pa.Table, timeout_s: float
    ) -> tuple[NarrowReply, pa.Table]: ...

    @abstractmethod
    def prime(self, asked: ShardQuestion, files: pa.Table, timeout_s: float) -> None: ...

    @abstractmethod
    def show(self, timeout_s: float) -> SlotCache: ...

    @abstractmethod
    def invalidate(self, gone: InvalidateQuestion, timeout_s: float) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class LocalSlot(Slot):
    """An executor in this process."""

    def __init__(self, service: ExecutorService) -> None:
        self._service = service

    def narrow(
        self, asked: NarrowQuestion, files: pa.Table, timeout_s: float  # noqa: ARG002
    ) -> tuple[NarrowReply, pa.Table]:  # fmt: skip
        return self._service.narrow(asked, files)

    def prime(self, asked: ShardQuestion, files: pa.Table, timeout_s: float) -> None:  # noqa: ARG002
        self._service.prime(asked, files)

    def show(self, timeout_s: float) -> SlotCache:  # noqa: ARG002
        return self._service.show()

    def invalidate(self, gone: InvalidateQuestion, timeout_s: float) -> None:  # noqa: ARG002
        self._service.invalidate(gone)

    def close(self) -> None:
        self._service.close()


class RemoteSlot(Slot):
    """An executor behind a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def narrow(
        self, asked: NarrowQuestion, files: pa.Table, timeout_s: float
    ) -> tuple[NarrowReply, pa.Table]:
        message, tables = self._ask(SlotCall.NARROW, body(asked, files), timeout_s)
        if len(tables) != 1:
            raise self._broken(f"{len(tables)} tables", "one")
        return self._whole(NarrowReply, message), tables[0]

    def prime(self, asked: ShardQuestion, files: pa.Table, timeout_s: float) -> None:
        message, _ = self._ask(SlotCall.PRIME, body(asked, files), timeout_s)
        self._whole(PrimeReply, message)

    def show(self, timeout_s: float) -> SlotCache:
        message, _ = self._ask(SlotCall.SHOW_CACHE, b"{}", timeout_s)
        return self._whole(SlotCache, message)

    def invalidate(self, gone: InvalidateQuestion, timeout_s: float) -> None:
        self._ask(SlotCall.INVALIDATE_CACHE, body(gone), timeout_s)

    def close(self) -> None:
        self._connection.close()

    def _ask(
        self, call: SlotCall, data: bytes, timeout_s: float
    ) -> tuple[dict[str, object], Sequence[pa.Table]]:
        return self._connection.ask(call, data, timeout_s=timeout_s)

    def _whole(self, model: type[M], message: object) -> M:
        try:
            return model.model_validate(message)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            found = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise self._broken(found, f"a {model.__name__}") from error

    def _broken(self, found: str, expected: str) -> Unreachable:
        return Unreachable(
            "a reply of an executor is not whole",
            resource=self._connection.endpoint,
            found=found,
            expected=expected,
        )
