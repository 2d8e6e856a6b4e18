"""The exchange of blocks in this thread, for tests without Spark."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

from tandem.spark.runtime.frames import RowBlock


class LocalExchange:
    """An `Exchange`. Blocks arrive in any order, and what tasks say is pickled, as by Spark.

    Attributes:
        sent: how many blocks each call has sent.
    """

    def __init__(self, seed: int = 0) -> None:
        self._chance = random.Random(seed)
        self.sent: list[int] = []

    def __call__(
        self,
        senders: int,
        send: Callable[[int], Iterator[RowBlock]],
        parts: int,
        receive: Callable[[Iterator[RowBlock]], Iterator[Any]],
    ) -> list[Any]:
        blocks = [block for number in range(senders) for block in send(number)]
        self.sent.append(len(blocks))
        self._chance.shuffle(blocks)
        return [
            pickle.loads(pickle.dumps(answer))
            for part in range(parts)
            for answer in receive(block for block in blocks if block.part == part)
        ]
