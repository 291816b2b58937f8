from __future__ import annotations

import asyncio

import pytest

from colibri.admission import Admission, Affinity, chat_affinity, raw_affinity
from colibri.errors import QueueFull

A, B, C = (b"a",), (b"b",), (b"c",)


async def slot_of(admission: Admission, affinity: Affinity) -> int:
    """The slot that a turn takes, which ends at once."""
    lease = await admission.acquire(affinity)
    lease.release()
    return lease.slot


async def test_conversations_return_to_their_slot() -> None:
    admission = Admission(slots=4, max_queue=0)
    first = {}
    for name in (A, B, C):
        first[name] = await slot_of(admission, name)
    assert len(set(first.values())) == 3
    for length, name in enumerate((C, A, B, B, A, C), 2):
        assert await slot_of(admission, name * length) == first[name]


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
    order: list[Affinity] = []

    async def wait(name: Affinity) -> None:
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


async def test_conversations_that_began_alike_keep_slots_of_their_own() -> None:
    admission = Admission(slots=3, max_queue=0)
    assert await slot_of(admission, (b"hi",)) == 0
    assert await slot_of(admission, (b"hi",)) == 1
    assert await slot_of(admission, (b"hi", b"well")) == 0
    assert await slot_of(admission, (b"hi", b"ill")) == 1
    assert await slot_of(admission, (b"hi", b"well", b"bye")) == 0
    assert await slot_of(admission, (b"hi", b"ill", b"bye")) == 1


async def test_an_answer_is_asked_for_again_where_it_was_given() -> None:
    admission = Admission(slots=2, max_queue=0)
    for name in (A, B):
        await slot_of(admission, name)
    assert await slot_of(admission, B) == 1
    assert await slot_of(admission, A) == 0


def test_a_chat_that_goes_on_has_the_beginnings_that_it_had() -> None:
    system = {"role": "system", "content": "s"}
    user = {"role": "user", "content": "u"}
    start = chat_affinity([system, user])
    assert len(start) == 2
    assert chat_affinity([system, user, {"role": "assistant", "content": "x"}, user])[:2] == start
    assert chat_affinity([user])[0] not in start
    other = chat_affinity([{"role": "system", "content": "su"}, user])
    assert not set(other) & set(start)


def test_a_raw_prompt_that_goes_on_has_the_beginnings_that_it_had() -> None:
    text = "".join(chr(97 + i * i % 26) for i in range(3000))
    for length in (64, 100, 1000, 2500):
        before, after = raw_affinity(text[:length]), raw_affinity(text[: length * 9 // 8 + 64])
        assert after[: len(before)] == before
        assert len(after) > len(before)
    assert raw_affinity(text)[-1] != raw_affinity(text[:-200] + "." * 200)[-1]
    assert raw_affinity("a") != raw_affinity("b")
    assert len(raw_affinity("x" * (1 << 20))) < 100
