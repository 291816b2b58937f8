"""Renders one chat template for the process that started this one (``template_process``).

Reads messages from stdin and answers each on stdout, both as a length (four bytes, little-endian)
and JSON: first the template, then one object of variables for each rendering. Ends with its input,
so it never outlives the server.
"""

from __future__ import annotations

import json
import resource
import signal
import sys

from colibri import _core

# The stack to render on, 512 MiB, counts although little of it is touched.
MEMORY_BYTES = 2 << 30
# The other side is less patient; this is for a rendering that outlives it.
LONGEST_S = 30.0


def _limit_resources() -> None:
    for limit, most in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(limit)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (most, most))


def _read() -> bytes | None:
    size = int.from_bytes(sys.stdin.buffer.read(4), "little")
    # No message is empty, so this is the end of input.
    return sys.stdin.buffer.read(size) or None


def _answer(**fields: str) -> None:
    message = json.dumps(fields, ensure_ascii=False).encode()
    sys.stdout.buffer.write(len(message).to_bytes(4, "little") + message)
    sys.stdout.buffer.flush()


def main() -> int:
    """Serves until the input ends and returns the exit code."""
    _limit_resources()
    # Without a handler the signal ends the process, wherever the template is.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    template: _core.ChatTemplate | None = None
    while (message := _read()) is not None:
        signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
        try:
            if template is None:
                template = _core.ChatTemplate(**json.loads(message))
                _answer()
            else:
                _answer(text=template.render(message.decode()))
        except _core.ColibriCoreError as error:
            _answer(error=str(error))
        signal.setitimer(signal.ITIMER_REAL, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
