"""The least that can be judged: READY, STAT, and each SUBMIT answered by DATA and DONE.

With an argument, other commands end it.
"""

from __future__ import annotations

import sys


def main() -> None:
    requests, records = sys.stdin.buffer, sys.stdout.buffer
    records.write(b"\x01\x01READY\x01\x01\nSTAT 0 0.00 0.0 0.10\n")
    records.flush()
    while line := requests.readline():
        words = line.split()
        if words[:1] != [b"SUBMIT"]:
            if sys.argv[1:]:
                sys.exit("what is that?")
            continue
        requests.read(int(words[3]) + 1)
        answer = b"DATA %b 2\nhi\nDONE %b STAT 1 0.00 0.0 0.10 1 0\n"
        records.write(answer % (words[1], words[1]))
        records.flush()


if __name__ == "__main__":
    main()
