"""An engine with one fault: runs a real one and breaks what goes in or comes out.

Usage: ``breaker.py FAULT LOG COMMAND...``. All that the engine reads and writes is appended to
``LOG.<pid>.in`` and ``LOG.<pid>.out``. Signals are passed on.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from colibri.conformance.matcher import Records

# A rule of its own uses this id.
LARGEST_ID = b"18446744073709551615"


def drop_accept(record: bytes) -> bytes:
    return b"" if record.startswith(b"ACCEPT ") else record


def miscount(record: bytes) -> bytes:
    return re.sub(rb"^(DONE \d+ STAT )4 ", rb"\g<1>5 ", record)


def miscount_twice(record: bytes) -> bytes:
    """The prompt's tokens first, of which the seed says nothing, then the answer's."""
    found = re.match(rb"(DONE \d+ STAT )(\d+)( \S+ \S+ \S+ )(\d+)", record)
    if found is None or int(found[2]) < 5:
        return record
    counts = int(found[2]) - 1, int(found[4]) + 1
    return b"%b%d%b%d" % (found[1], counts[0], found[3], counts[1]) + record[found.end() :]


def drop_caps(record: bytes) -> bytes:
    """What is left has ACCEPT and PREFILL beyond the seed, and says so nowhere."""
    return b"" if record.startswith(b"CAPS ") else record


def swap_block(record: bytes, held: list[bytes]) -> bytes:
    """TIERS before GPUS; the handshake stays as it is."""
    if record.startswith(b"ENTROPY "):
        held.append(b"")
    if record.startswith(b"GPUS ") and held:
        held.append(record)
        return b""
    if record.startswith(b"TIERS ") and held:
        swapped = record + b"".join(held)
        held.clear()
        return swapped
    return record


def lose_a_byte(record: bytes) -> bytes:
    head, _, payload = record.partition(b"\n")
    if head.startswith(b"DATA " + LARGEST_ID) and len(payload) > 1:
        return head + b"\n" + payload[1:]
    return record


def shorten_hits(record: bytes) -> bytes:
    return record[:-2] + b"\n" if record.startswith(b"HITS ") else record


def halve_characters(record: bytes, sent: dict[bytes, int]) -> bytes:
    """The first two tokens of every turn are the two bytes of a character."""
    words = record.split(b"\n")[0].split()
    if words[0] == b"ACCEPT":
        sent[words[1]] = 0
    if words[0] != b"DATA":
        return record
    at = sent[words[1]]
    sent[words[1]] += 1
    return b"DATA %s 1\n%s\n" % (words[1], b"\xc3\xa9"[at : at + 1]) if at < 2 else record


def fall_silent(record: bytes, silent: list[bool]) -> bytes:
    if record.endswith(b" CANCELLED\n"):
        silent.append(True)
    return b"" if silent else record


def answer_nothing(record: bytes) -> bytes:
    return b"" if record.startswith(b"ERROR 1 EMPTY_PROMPT") else record


def die(record: bytes) -> bytes:
    if record.startswith(b"DATA " + LARGEST_ID):
        os._exit(70)
    return record


def banner(record: bytes) -> bytes:
    return b"an engine\nloaded in 1 s\n" + record if b"READY" in record else record


def further(record: bytes) -> bytes:
    """What later versions may send: other kinds, and further fields."""
    if record.startswith((b"DONE ", b"TIERS ", b"ACCEPT ")):
        return b"FUTURE 1 x=2\n" + record[:-1] + b" 7\n"
    return record


def execute_payload(data: bytes) -> bytes:
    return data + b"CANCEL 1\n" if b"28 1 0 1\nab\nCANCEL 1\n" in data else data


def ignore_stop(data: bytes) -> bytes:
    return b"" if data == b"STOP 1\n" else data


def keep(data: bytes) -> bytes:
    return data


OUTPUT: dict[str, Callable[[bytes], bytes]] = {
    "drop-accept": drop_accept,
    "miscount": miscount,
    "miscount-twice": miscount_twice,
    "drop-caps": drop_caps,
    "swap-block": lambda record, held=[]: swap_block(record, held),
    "lose-a-byte": lose_a_byte,
    "shorten-hits": shorten_hits,
    "halve-characters": lambda record, sent={}: halve_characters(record, sent),
    "fall-silent": lambda record, silent=[]: fall_silent(record, silent),
    "answer-nothing": answer_nothing,
    "die": die,
    "banner": banner,
    "further": further,
}
INPUT = {"execute-payload": execute_payload, "ignore-stop": ignore_stop}
EXIT_CODES = {"exit-with-0": {3: 0}}
FAULTS = [*OUTPUT, *INPUT, *EXIT_CODES]


def chunks(number: int) -> Iterator[bytes]:
    while data := os.read(number, 1 << 16):
        yield data


def main() -> int:
    fault, log, *command = sys.argv[1:]
    engine = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert engine.stdin is not None
    assert engine.stdout is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: engine.send_signal(number))
    stdin = engine.stdin

    def forward() -> None:
        with Path(f"{log}.{os.getpid()}.in").open("ab", buffering=0) as file:
            for data in chunks(0):
                file.write(data)
                try:
                    view = memoryview(INPUT.get(fault, keep)(data))
                    while view:
                        view = view[stdin.write(view) :]
                except BrokenPipeError:
                    return
        stdin.close()

    threading.Thread(target=forward, daemon=True).start()
    break_output = OUTPUT.get(fault, keep)
    records = Records()
    with Path(f"{log}.{os.getpid()}.out").open("ab", buffering=0) as file:
        for data in chunks(engine.stdout.fileno()):
            file.write(data)
            for record in records.feed(data):
                view = memoryview(break_output(record))
                while view:
                    view = view[os.write(1, view) :]
    code = engine.wait()
    return EXIT_CODES.get(fault, {}).get(code, code)


if __name__ == "__main__":
    code = main()
    # The thread may wait for input that never comes.
    os._exit(code)
