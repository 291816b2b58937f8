"""Who may start, when, and in which slot.

Owns: the queue, which slots are taken, which conversation a slot last served.
Does not own: requests in the engine.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from blake3 import blake3

from colibri.errors import QueueFull

# A raw prompt is recognised by its beginning.
RAW_AFFINITY_CHARS = 256


def chat_affinity(messages: Sequence[Mapping[str, Any]]) -> bytes:
    """Names a conversation by its messages up to and including the first of the user."""
    digest = blake3()
    for message in messages:
        for text in (message["role"], message["content"] or ""):
            data = str(text).encode()
            # Lengths keep ("ab", "c") apart from ("a", "bc").
            digest.update(len(data).to_bytes(8, "little") + data)
        if message["role"] == "user":
            break
    return digest.digest()


def raw_affinity(prompt: str) -> bytes:
    """Names a raw prompt by its beginning."""
    return blake3(b"raw" + prompt[:RAW_AFFINITY_CHARS].encode()).digest()


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
        self._served: dict[int, bytes] = {}
        self._waiting: deque[tuple[asyncio.Future[Lease], bytes]] = deque()

    @property
    def active(self) -> int:
        """Slots taken."""
        return self.slots - len(self._free)

    @property
    def queued(self) -> int:
        """Requests waiting."""
        return sum(not future.done() for future, _ in self._waiting)

    async def acquire(self, affinity: bytes) -> Lease:
        """Waits for a slot, preferably the one that last served this conversation.

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

    def _take(self, affinity: bytes) -> Lease:
        slot = next((s for s in self._free if self._served.get(s) == affinity), self._free[0])
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
