"""Sends an engine random frames, valid and not, and checks every answer.

    python scripts/soak.py --frames 100000

The engine runs the tiny model of the tests on 16 slots. All bytes of both directions go through
the model of the protocol (``colibri.conformance.monitor``). At the end every request must have
ended, the engine must still answer, not have grown, and exit with 0. Ends with 1 if not.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from colibri.conformance.monitor import WIRES, Monitor
from colibri.find_engine import find_engine

MODEL = Path(__file__).parents[1] / "tests" / "data" / "oracle" / "glm4_moe_lite"
SLOTS = 16
CTX = 64
OPTIONS = ("seed", "topk", "stop_ids", "ignore_eos")
# Ids of ordinary frames; few, so that they meet. Those of fences are above.
IDS = range(1, 41)
FENCES = 1 << 32
WAIT_S = 60
# Caches and the allocator are full after that many frames.
WARM_UP_FRAMES = 10_000
# The pages that an allocator keeps differ from run to run.
RSS_GROWTH_BYTES = 16 << 20

PAYLOADS = (
    b"CANCEL 7\n",
    b"STOP 7\nCANCEL 7\nSUBMIT 7 0 1 1 0 1\nx\n",
    b"\x01\x01READY\x01\x01\n",
    b"DONE 7 STAT 1 0.00 0.0 0.01 1 0\n",
    b"\r\n\r\n",
    b"\n",
    b" ",
    b"\xff\xfe\xc3\x28\xf0\x9f",
    b"\xc3",
    "höflich 🐦".encode(),
    b"<|user|>[gMASK]<sop></think>",
    b"def parse(self, args):",
)
BAD_FIELDS: dict[str, tuple[str, ...]] = {
    "id": ("0", "-1", "x", "18446744073709551616", "1.5", "+1"),
    "slot": ("16", "-1", "x", "99999999999999999999", "0x1"),
    "max_tokens": ("0", "-1", "2147483648", "x", "1e3"),
    "temperature": ("nan", "inf", "-0.1", "2.0001", "x", "0x1p0", "-0", "1e999"),
    "top_p": ("0", "1.0001", "nan", "-1", "x", "+0.5"),
    "options": (
        "min_p=0.5",
        "seed=-1",
        "seed=1 seed=1",
        "topk=21",
        "stop_ids=",
        "stop_ids=1,x",
        "ignore_eos=2",
        "nonsense",
        "=",
        "top_k",
        "seed=18446744073709551616",
    ),
}
BAD_LINES = (
    b"",
    b" ",
    b"STOP",
    b"CANCEL ",
    b"CANCEL x",
    b"STOP 0",
    b"STOP -1",
    b"CANCEL 1 2",
    b"cancel 1",
    b" CANCEL 1",
    b"STOP\t1",
    b"CANCEL 18446744073709551616",
    b"SUBMITS 1 0 1 1 0 1",
    b"\x01\x01READY\x01\x01",
    b"\x00\xff\xfe",
    b"x" * 4096,
)
# After one of these nothing more is read.
LOST = (
    b"SUBMIT 7 0 x 1 0 1\nabc\n",
    b"SUBMIT 7 0 3 1 0 1\nabcd\n",
    b"SUBMIT 7 0 3 1 0 1 grammar=x\nabc\n",
    b"y" * 4097,
)


class Frames:
    """Random frames."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sent: Counter[str] = Counter()

    def next(self) -> bytes:
        """Returns one frame, of any kind."""
        kinds = {
            self.submit: 36,
            self.faulty_submit: 22,
            self.command: 25,
            self.bad_line: 10,
            self.empty: 3,
            self.too_long: 3,
            self.nul: 1,
        }
        [make] = self.random.choices(list(kinds), list(kinds.values()))
        self.sent[make.__name__] += 1
        return make()

    def header(self, size: int, **fields: str) -> bytes:
        values = {
            "id": str(self.random.choice(IDS)),
            "slot": str(self.random.randrange(SLOTS)),
            "bytes": str(size),
            "max_tokens": str(self.random.choice((1, 2, 3, 5, 9, 2147483647))),
            "temperature": self.random.choice(("0", "0.7", "2", "1e-1", ".5", "1.")),
            "top_p": self.random.choice(("1", "0.9", "1e-3", "1.000")),
            **fields,
        }
        gap = self.random.choices((" ", "  "), (9, 1))[0]
        end = self.random.choices(("", "\r", " "), (8, 1, 1))[0]
        return ("SUBMIT " + gap.join(filter(None, values.values())) + end + "\n").encode()

    def payload(self) -> bytes:
        if self.random.random() < 0.5:
            return self.random.choice(PAYLOADS)
        size = self.random.randrange(1, 60)
        return self.random.randbytes(size).replace(b"\0", b"\n")

    def submit(self) -> bytes:
        payload = self.payload()
        options = {
            "seed": str(self.random.getrandbits(64)),
            "topk": str(self.random.randrange(21)),
            "stop_ids": str(self.random.randrange(512)),
            "ignore_eos": self.random.choice("01"),
        }
        chosen = self.random.sample(OPTIONS, self.random.choice((0, 0, 1, 2, 4)))
        text = " ".join(f"{name}={options[name]}" for name in chosen)
        return self.header(len(payload), options=text) + payload + b"\n"

    def faulty_submit(self) -> bytes:
        payload = self.payload()
        field = self.random.choice(list(BAD_FIELDS))
        wrong = self.random.choice((*BAD_FIELDS[field], ""))
        if wrong == "" and field not in ("top_p", "options"):
            wrong = "?"  # a field that is missing would shift `bytes`
        if field == "options" and wrong == "":
            wrong = "8"  # a grammar's length, which CAPS does not offer
            payload += b"12345678"
            return self.header(len(payload) - 8, options=wrong) + payload + b"\n"
        return self.header(len(payload), **{field: wrong}) + payload + b"\n"

    def nul(self) -> bytes:
        payload = b"a\0CANCEL 1\n"
        return self.header(len(payload)) + payload + b"\n"

    def empty(self) -> bytes:
        return self.header(0) + b"\n"

    def too_long(self) -> bytes:
        payload = self.random.randbytes(self.random.choice((400, 5000, 40_000)))
        payload = payload.replace(b"\0", b"x")
        return self.header(len(payload)) + payload + b"\n"

    def command(self) -> bytes:
        verb = self.random.choice((b"STOP", b"CANCEL"))
        request = self.random.choice((*IDS, 77_777, (1 << 64) - 1))
        return b"%b %d%b\n" % (verb, request, self.random.choice((b"", b"", b"\r")))

    def bad_line(self) -> bytes:
        return self.random.choice(BAD_LINES) + b"\n"


class Soak:
    """An engine under fire; reading and writing are concurrent, so that neither waits."""

    def __init__(self, wire: str) -> None:
        self.monitor = Monitor(wire, SLOTS)
        self.process = subprocess.Popen(
            [
                *find_engine(),
                *("--mux", "--model", str(MODEL)),
                *("--ctx", str(CTX), "--slots", str(SLOTS)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "COLIBRI_WIRE": wire},
        )
        self.received = 0
        self.tail = b""
        self.news = threading.Condition()
        self.is_over = False
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while chunk := self.process.stdout.read1(1 << 16):  # type: ignore[attr-defined]
            with self.news:
                self.monitor.received(chunk)
                self.received += len(chunk)
                self.tail = (self.tail + chunk)[-(1 << 20) :]
                self.news.notify()
        with self.news:
            self.is_over = True
            self.news.notify()

    def send(self, data: bytes) -> None:
        """Tells the monitor, then the engine."""
        assert self.process.stdin is not None
        with self.news:
            self.monitor.sent(data)
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def wait_for(self, wanted: bytes) -> None:
        """Waits for a record that nothing else can look like."""
        with self.news:
            came = self.news.wait_for(lambda: wanted in self.tail or self.is_over, WAIT_S)
            if not came or wanted not in self.tail:
                raise TimeoutError(f"{wanted!r} did not come; the last bytes: {self.tail[-300:]!r}")

    def fence(self, number: int) -> None:
        """Waits until everything that was sent has been handled."""
        request = FENCES + number
        self.send(b"STOP %d\n" % request)
        self.wait_for(b"\nERROR %d NOT_FOUND\n" % request)

    def ask(self, request: int) -> None:
        """One good request, to its end; its slot may still be busy for a while."""
        for _ in range(WAIT_S * 10):
            self.send(b"SUBMIT %d 0 3 2 0 1\nabc\n" % request)
            self.wait_for(b" %d " % request)
            if b"ERROR %d SLOT_BUSY" % request not in self.tail:
                break
            time.sleep(0.1)
            with self.news:
                self.tail = b""
        self.wait_for(b"\nDONE %d STAT " % request)

    def rss(self) -> int:
        """The engine's resident bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
        return int(line.split()[1]) << 10

    def said_rss(self) -> int:
        """What the engine's last DONE says."""
        with self.news:
            line = re.findall(rb"\nDONE [^\n]*", self.tail)[-1]
        return round(float(line.split()[6]) * 1e9)

    def end(self) -> int:
        """Closes stdin and returns the exit code."""
        assert self.process.stdin is not None
        with self.news:
            self.monitor.input_ended()
        self.process.stdin.close()
        code = self.process.wait(WAIT_S)
        self.reader.join(WAIT_S)
        self.monitor.ended(code)
        return code


def soak(count: int, seed: int, wire: str) -> list[str]:
    """Sends ``count`` frames; returns what is wrong."""
    frames = Frames(seed)
    run = Soak(wire)
    try:
        start = time.monotonic()
        sent = 0
        warm_rss = None
        while sent < count:
            # Few at a time, so that states are known, or many, so that they are not.
            window = min(frames.random.choice((1, 4, 20, 200)), count - sent)
            for _ in range(window):
                run.send(frames.next())
            sent += window
            run.fence(sent)
            if warm_rss is None and sent >= WARM_UP_FRAMES:
                warm_rss = run.rss()
        run.ask(FENCES - 1)
        seconds = time.monotonic() - start
        rss, said = run.rss(), run.said_rss()
        for slot in range(SLOTS):
            run.send(frames.header(3, slot=str(slot)) + b"abc\n")
        if frames.random.random() < 0.5:
            run.send(frames.random.choice(LOST))
        code = run.end()
    finally:
        run.process.kill()
        run.process.wait()
    monitor = run.monitor
    print(f"{count} frames in {seconds:.1f} s, {run.received} bytes back, exit code {code}")
    growth = 0 if warm_rss is None else rss - warm_rss
    print(f"resident {rss / 1e6:.1f} MB, {growth / 1e6:+.1f} MB since the warm-up")
    print("sent:", ", ".join(f"{n} {kind}" for kind, n in frames.sent.most_common()))
    print("checked:", ", ".join(f"{n} {rule}" for rule, n in monitor.exercised.most_common()))
    wrong = [f"{f.rule}: {f.detail}: {f.seen!r}" for f in monitor.findings]
    if growth > RSS_GROWTH_BYTES:
        wrong.append(f"the engine grew by {growth} bytes")
    if abs(said - rss) > RSS_GROWTH_BYTES:
        wrong.append(f"the engine says that {said} bytes are resident")
    return wrong


def main() -> int:
    """Runs the soak and returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--frames", type=int, default=100_000, help="default: 100000")
    parser.add_argument("--seed", type=int, help="default: a random one, which is printed")
    parser.add_argument("--wire", choices=WIRES, default="full", help="default: full")
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else random.SystemRandom().getrandbits(32)
    print(f"seed {seed}", flush=True)
    wrong = soak(args.frames, seed, args.wire)
    for line in wrong[:20]:
        print(line)
    print(f"{len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
