"""What memory an engine takes beside its budget, in a control group that would kill it for more.

    python tests/memory_use.py MODEL RAM_GB...

prints, for each budget, the most anonymous memory of the engine over some turns, beside the budget.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from colibri.find_engine import find_engine
from wire import Answer, Request, Wire

# What a group may have, of the budget.
LIMIT = 1.15


def anonymous_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    [kib] = [line.split()[1] for line in text.splitlines() if line.startswith("RssAnon")]
    return int(kib) * 1024


class Watch:
    """The most anonymous memory that a process takes."""

    def __init__(self, pid: int) -> None:
        self.most = 0
        self._pid = pid
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
            while not self._end.wait(0.002):
                self.most = max(self.most, anonymous_bytes(self._pid))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def _own_group(controller: str) -> str | None:
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return path.lstrip("/")
    return None


class Group:
    """A control group with a limit on memory."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self._is_first = (folder / "memory.limit_in_bytes").exists()
        name = "memory.limit_in_bytes" if self._is_first else "memory.max"
        (folder / name).write_text(str(limit_bytes), encoding="ascii")
        # Swapping would hide what is too much.
        swap = "memory.memsw.limit_in_bytes" if self._is_first else "memory.swap.max"
        with contextlib.suppress(OSError):
            (folder / swap).write_text(str(limit_bytes if self._is_first else 0), encoding="ascii")

    def command(self) -> list[str]:
        """A command that starts the engine in the group."""
        enter = f'echo $$ > {shlex.quote(str(self.folder / "cgroup.procs"))}; exec "$@"'
        return ["sh", "-c", enter, "sh", *find_engine()]

    def killed(self) -> int:
        """Processes that the kernel has killed for memory."""
        name = "memory.oom_control" if self._is_first else "memory.events"
        lines = (self.folder / name).read_text(encoding="ascii").splitlines()
        return int(dict(line.split() for line in lines).get("oom_kill", 0))


def _parents() -> Iterator[Path]:
    """Groups that may take one of ours."""
    for mount, controller in (("/sys/fs/cgroup/memory", "memory"), ("/sys/fs/cgroup", "")):
        own = _own_group(controller)
        if own is not None:
            yield from (Path(mount, own), Path(mount))


def _make(parent: Path, limit_bytes: int) -> Group | None:
    try:
        # What is no group has no such file.
        (parent / "cgroup.procs").stat()
        folder = Path(tempfile.mkdtemp(prefix="colibri-test-", dir=parent))
    except OSError:
        return None
    try:
        return Group(folder, limit_bytes)
    except OSError:
        folder.rmdir()
        return None


@contextlib.contextmanager
def limited(limit_bytes: int) -> Iterator[Group | None]:
    """A group below this process' own; none where the system lets us make none.

    An rlimit is no substitute: it counts what is mapped, of which much may never be touched.
    """
    groups = (_make(parent, limit_bytes) for parent in _parents())
    group = next((group for group in groups if group is not None), None)
    try:
        yield group
    finally:
        if group is not None:
            group.folder.rmdir()


@dataclass(frozen=True)
class Use:
    """What an engine answered, and the memory it took."""

    answers: list[Answer]
    most: int
    at_end: int
    in_group: bool
    caps: dict[str, str]


def use(
    model: Path, turns: list[Request], ram_bytes: int | None, ctx: int, device_bytes: int = 0
) -> Use:
    """Asks an engine for some answers one after the other, with a budget and a group around it.

    Some memory beside the budget may be a device.
    """
    limit = 1 << 50 if ram_bytes is None else int((ram_bytes + device_bytes) * LIMIT)
    settings: dict[str, object] = {} if ram_bytes is None else {"RAM_GB": ram_bytes / 1e9}
    if device_bytes:
        settings |= {"COLIBRI_DEVICE": "host", "VRAM_GB": device_bytes / 1e9}
    with limited(limit) as group:
        command = find_engine() if group is None else group.command()
        with Wire(model, ctx=ctx, command=command, **settings) as engine:
            with Watch(engine.process.pid) as watch:
                answers = [engine.ask([turn])[0] for turn in turns]
                at_end = anonymous_bytes(engine.process.pid)
            caps = engine.caps
        assert group is None or group.killed() == 0
    return Use(answers, watch.most, at_end, group is not None, caps)


def requests(count: int, prompt_chars: int, tokens: int) -> list[Request]:
    """Prompts that share nothing."""
    texts = [
        " ".join(f"{turn} {turn * 31 + i * i % 977}" for i in range(400)) for turn in range(count)
    ]
    return [Request(text[:prompt_chars], tokens, seed) for seed, text in enumerate(texts)]


def main() -> None:
    model = Path(sys.argv[1])
    for text in sys.argv[2:]:
        budget = int(float(text) * 1e9)
        found = use(model, requests(3, 1500, 60), budget, 2048)
        limit = f"group of {LIMIT * budget / 1e6:.0f} MB" if found.in_group else "no group"
        print(
            f"{budget / 1e6:.0f} MB: most {found.most / 1e6:.0f} MB ({found.most / budget:.1%}), "
            f"at the end {found.at_end / 1e6:.0f} MB ({found.at_end / budget:.1%}), {limit}",
            flush=True,
        )


if __name__ == "__main__":
    main()
