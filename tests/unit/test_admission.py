from __future__ import annotations

import asyncio

import pytest

from colibri.admission import Admission, chat_affinity, raw_affinity
from colibri.errors import QueueFull

A, B, C = b"a", b"b", b"c"


async def test_conversations_return_to_their_slot() -> None:
    admission = Admission(slots=4, max_queue=0)
    first = {}
    for name in (A, B, C):
        lease = await admission.acquire(name)
        first[name] = lease.slot
        lease.release()
    assert len(set(first.values())) == 3
    for name in (C, A, B, B, A, C):
        lease = await admission.acquire(name)
        assert lease.slot == first[name]
        lease.release()


async def test_a_new_conversation_takes_the_slot_idle_for_longest() -> None:
    admission = Admission(slots=2, max_queue=0)
    for name in (A, B, A):
        (await admission.acquire(name)).release()
    lease = await admission.acquire(C)
    assert lease.slot == 1  # B's: A came back later


async def test_a_busy_slot_does_not_hold_up_its_conversation() -> None:
    admission = Admission(slots=2, max_queue=0)
    one = await admission.acquire(A)
    two = await admission.acquire(A)
    assert {one.slot, two.slot} == {0, 1}


async def test_the_queue_is_first_in_first_out_and_bounded() -> None:
    admission = Admission(slots=1, max_queue=2)
    running = await admission.acquire(A)
    order: list[bytes] = []

    async def wait(name: bytes) -> None:
        lease = await admission.acquire(name)
        order.append(name)
        lease.release()

    waiting = [asyncio.ensure_future(wait(name)) for name in (B, C)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull) as caught:
        await admission.acquire(A)
    assert caught.value.status == 429
    assert (admission.active, admission.queued, admission.rejected) == (1, 2, 1)
    running.release()
    await asyncio.gather(*waiting)
    assert order == [B, C]
    assert (admission.active, admission.queued) == (0, 0)


async def test_who_leaves_the_queue_never_gets_a_slot() -> None:
    admission = Admission(slots=1, max_queue=2)
    running = await admission.acquire(A)
    leaver = asyncio.ensure_future(admission.acquire(B))
    stayer = asyncio.ensure_future(admission.acquire(C))
    await asyncio.sleep(0)
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    assert admission.queued == 1
    running.release()
    assert (await stayer).slot == 0


async def test_a_slot_that_arrives_with_the_cancellation_is_given_back() -> None:
    admission = Admission(slots=1, max_queue=2)
    running = await admission.acquire(A)
    leaver = asyncio.ensure_future(admission.acquire(B))
    await asyncio.sleep(0)
    running.release()
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    assert admission.active == 0


async def test_releasing_twice_frees_one_slot() -> None:
    admission = Admission(slots=2, max_queue=0)
    lease = await admission.acquire(A)
    lease.release()
    lease.release()
    assert admission.active == 0
    await admission.acquire(A)
    await admission.acquire(B)
    with pytest.raises(QueueFull):
        await admission.acquire(C)


def test_affinity_covers_the_messages_through_the_first_of_the_user() -> None:
    system = {"role": "system", "content": "s"}
    user = {"role": "user", "content": "u"}
    start = chat_affinity([system, user])
    assert chat_affinity([system, user, {"role": "assistant", "content": "x"}, user]) == start
    assert chat_affinity([user]) != start
    assert chat_affinity([{"role": "system", "content": "su"}, user]) != start
    assert raw_affinity("x" * 300 + "a") == raw_affinity("x" * 300 + "b")
    assert raw_affinity("a") != raw_affinity("b")
