"""An engine without a model that streams as fast as it can or at a given pace; see gateway.py.

    python -S benchmarks/scripted_engine.py STREAMS STEPS_PER_S [engine arguments]

Waits until STREAMS requests are there, then gives all of them one token a step, one write a step,
until they have theirs. At a pace above 0 each token is the time of its writing in microseconds;
at 0 the tokens are words, steps follow without a pause, and a write holds as many as a pipe takes.
"""

from __future__ import annotations

import os
import sys
import time

PIPE_BYTES = 1 << 16
WORD = b" word"
HANDSHAKE = (
    "\x01\x01READY\x01\x01\nSTAT 0 0.00 0.0 0.01\nHWINFO 2 8.0 4.0 0 0.0 none|none\nGPUS 0\n"
    "TIERS 0 1 0 0.00 0.01\nEMAP 1 1 40\n"
    "CAPS proto=1 ctx=1000000 slots={} vocab=512 model=scripted submit= eos=0\n"
)


def main() -> None:
    streams, pace = int(sys.argv[1]), float(sys.argv[2])
    write_all(HANDSHAKE.format(streams).encode())
    pending = b""
    requests: dict[int, int] = {}
    while data := os.read(0, PIPE_BYTES):
        pending = take_requests(pending + data, requests)
        if len(requests) == streams:
            steps = min(requests.values())
            if pace > 0:
                paced(list(requests), steps, pace)
            else:
                flood(list(requests), steps)
            write_all(b"".join(map(ending, requests, requests.values())))
            requests.clear()


def take_requests(data: bytes, requests: dict[int, int]) -> bytes:
    """Accepts each complete SUBMIT; returns what is incomplete."""
    while (at := data.find(b"\n")) >= 0:
        words = data[:at].split()
        if words[0] != b"SUBMIT":
            data = data[at + 1 :]
            continue
        end = at + 1 + int(words[3]) + 1
        if len(data) < end:
            break
        requests[int(words[1])] = int(words[4])
        write_all(b"ACCEPT %s 8\n" % words[1])
        data = data[end:]
    return data


def flood(ids: list[int], steps: int) -> None:
    step = b"".join(b"DATA %d %d\n%s\n" % (one, len(WORD), WORD) for one in ids)
    at_once = max(1, PIPE_BYTES // len(step))
    while steps > 0:
        write_all(step * min(at_once, steps))
        steps -= at_once


def paced(ids: list[int], steps: int, pace: float) -> None:
    heads = [b"DATA %d 16\n" % one for one in ids]
    begin = time.monotonic()
    for i in range(steps):
        time.sleep(max(0.0, begin + i / pace - time.monotonic()))
        text = b"%16d\n" % (time.monotonic_ns() // 1000)
        write_all(b"".join(head + text for head in heads))


def ending(turn_id: int, tokens: int) -> bytes:
    return (
        f"PERF {turn_id} 1 0 0 0 0 0 0\nENTROPY 1.0\nGPUS 0\nTIERS 0 1 0 0.00 0.01\n"
        f"EMAP 1 1 40\nHITS 1 1 01\nDONE {turn_id} STAT {tokens} 10.00 99.0 0.01 8 1\n"
    ).encode()


def write_all(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


if __name__ == "__main__":
    main()
