"""Who may start, when, and in which slot.

Owns: the queue, which slots are taken, what conversation a slot last served and how far it was.
Does not own: requests in the engine.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from blake3 import blake3

from colibri.errors import QueueFull

# A conversation as far as it has come: digests of ever longer beginnings. One that goes on has
# those that it had before, and more.
Affinity: TypeAlias = tuple[bytes, ...]

# Raw prompts are compared after so many characters, and after each further eighth of their length.
RAW_STEP_CHARS = 64


def chat_affinity(messages: Sequence[Mapping[str, Any]]) -> Affinity:
    """Names a conversation by its messages, one digest for each."""
    digest = blake3()
    beginnings = []
    for message in messages:
        for text in (message["role"], message["content"] or ""):
            data = str(text).encode()
            # Lengths keep ("ab", "c") apart from ("a", "bc").
            digest.update(len(data).to_bytes(8, "little") + data)
        beginnings.append(digest.digest())
    return tuple(beginnings)


def raw_affinity(prompt: str) -> Affinity:
    """Names a raw prompt by its beginnings; one that is too short to have any, by all of it."""
    digest = blake3(b"raw")
    beginnings = []
    start, end = 0, RAW_STEP_CHARS
    while end <= len(prompt):
        digest.update(prompt[start:end].encode())
        beginnings.append(digest.digest())
        start, end = end, end + max(RAW_STEP_CHARS, end // 8)
    return tuple(beginnings) or (blake3(b"short" + prompt.encode()).digest(),)


class Lease:
    """A slot that is taken; released once, by whoever learns first that it is free."""

    def __init__(self, admission: Admission, slot: int) -> None:
        self.slot = slot
        self._admission: Admission | None = admission

    def release(self) -> None:
        """Gives the slot back; further calls do nothing."""
        admission, self._admission = self._admission, None
        if admission is not None:
            admission._release(self.slot)


class Admission:
    """A bounded first-in-first-out queue for a fixed number of slots.

    Args:
        slots: requests that run at once.
        max_queue: requests that may wait.
    """

    def __init__(self, slots: int, max_queue: int) -> None:
        self.slots = slots
        self.max_queue = max_queue
        self.admitted = 0
        self.rejected = 0
        # Least recently used first, so that a new conversation takes the oldest cache.
        self._free: list[int] = list(range(slots))
        self._served: dict[int, Affinity] = {}
        self._waiting: deque[tuple[asyncio.Future[Lease], Affinity]] = deque()

    @property
    def active(self) -> int:
        """Slots taken."""
        return self.slots - len(self._free)

    @property
    def queued(self) -> int:
        """Requests waiting."""
        return sum(not future.done() for future, _ in self._waiting)

    async def acquire(self, affinity: Affinity) -> Lease:
        """Waits for a slot, preferably the one that served most of this conversation.

        Cancelling leaves the queue at once.

        Raises:
            QueueFull: ``max_queue`` requests are waiting already.
        """
        if self._free and not self._waiting:
            return self._take(affinity)
        if self.queued >= self.max_queue:
            self.rejected += 1
            raise QueueFull(
                f"all {self.slots} slots are busy and {self.max_queue} requests are waiting"
            )
        future: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        entry = (future, affinity)
        self._waiting.append(entry)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                # The slot arrived in the same tick as the cancellation.
                future.result().release()
            elif entry in self._waiting:
                self._waiting.remove(entry)
            raise

    def _choose(self, affinity: Affinity) -> int:
        """The free slot whose conversation this one continues, from as late as there is one.

        The engine shares what slots hold, so another costs nothing but the history that it had.
        What merely repeats a conversation may be another that began alike: it leaves that its slot
        where one was never used.
        """
        served = {slot: len(self._served.get(slot, ())) for slot in self._free}
        own = [
            slot
            for slot, n in served.items()
            if 0 < n <= len(affinity) and self._served[slot][-1] == affinity[n - 1]
        ]
        continued = [slot for slot in own if served[slot] < len(affinity)]
        if continued:
            return max(continued, key=served.__getitem__)
        oldest = self._free[0]
        return own[0] if own and served[oldest] else oldest

    def _take(self, affinity: Affinity) -> Lease:
        slot = self._choose(affinity)
        self._free.remove(slot)
        self._served[slot] = affinity
        self.admitted += 1
        return Lease(self, slot)

    def _release(self, slot: int) -> None:
        self._free.append(slot)
        while self._free and self._waiting:
            future, affinity = self._waiting.popleft()
            if not future.done():
                future.set_result(self._take(affinity))
