"""An engine as there were before: legacy on its pipes, banners, and no flags it knows.

Usage: ``old_engine.py SCENARIO.json [engine arguments]``. What it receives is appended to
``SCENARIO.json.log``, signals too. Scenario: ``words`` of each answer, ``token_s`` between them,
``load_s`` before READY, ``news`` a line after TIERS, ``exit_after`` words with ``exit_code``,
``refuse`` with a reason, ``hang_after`` words for ever, deaf to all but SIGKILL (its process is in
``SCENARIO.json.pid`` then), with stdout closed if it has ``close_output``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

END = b"\x01\x01END\x01\x01\n"


def main() -> int:
    path = Path(sys.argv[1])
    scenario = json.loads(path.read_text(encoding="utf-8"))
    interrupted = False

    def log(text: str) -> None:
        with Path(f"{path}.log").open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")

    def on_interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True

    def write(data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    signal.signal(signal.SIGINT, on_interrupt)
    log(" ".join(sys.argv[2:]))
    write(b"== old engine, built today ==\nloaded in 0.1 s\n")
    time.sleep(scenario.get("load_s", 0))
    write(b"\x01\x01READY\x01\x01\nSTAT 0 0.00 0.0 0.50\nTIERS 0 1 2 0.00 0.10\n")
    write(scenario.get("news", "").encode())
    while line := sys.stdin.buffer.readline():
        log(repr(line.decode().rstrip("\n")))
        if line in (b"\n", b"\x02RESET\n"):
            write(END + b"STAT 0 0.00 0.0 0.50\n")
            continue
        if reason := scenario.get("refuse"):
            print(f"error: request: {reason}", file=sys.stderr, flush=True)
            write(END + b"STAT 0 0.00 0.0 0.50 0 0\n")
            continue
        said = 0
        interrupted = False
        for word in scenario["words"]:
            if interrupted:
                log("SIGINT")
                break
            if said == scenario.get("exit_after"):
                print("error: no such expert", file=sys.stderr, flush=True)
                return int(scenario["exit_code"])
            if said == scenario.get("hang_after"):
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, lambda number, _: log(signal.Signals(number).name))
                Path(f"{path}.pid").write_text(str(os.getpid()), encoding="utf-8")
                if scenario.get("close_output"):
                    os.close(1)
                while True:
                    time.sleep(60)
            write(word.encode("latin-1"))
            said += 1
            time.sleep(scenario.get("token_s", 0))
        # The end in two pieces, as a slow pipe may bring it.
        write(b"\n" + END[:5])
        time.sleep(0.01)
        write(END[5:])
        more = line == b"\x02MORE\n"
        write(b"STAT %d 3.10 90.0 0.50%s\n" % (said, b"" if more else b" 7 1 swap_pct=0.0"))
    log("EOF")
    return 0


if __name__ == "__main__":
    sys.exit(main())
