"""Golden transcripts of the serve protocol, played against the engine and through the codec."""

from __future__ import annotations

import ast
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from colibri import _core
from colibri.find_engine import find_engine

HERE = Path(__file__).parent
MODEL = HERE.parent / "data" / "oracle" / "glm4_moe_lite"
TIMEOUT_S = 30
PLACEHOLDERS = {
    "{n}": rb"\d+",
    "{f}": rb"-?\d+\.\d+",
    "{x}": rb"[0-9a-f]+",
    "{w}": rb"[^ \n]+",
    "{s}": rb"[^\n]+",
}


def unescape(text: str) -> bytes:
    quoted = text.replace('"', '\\"')
    return bytes(ast.literal_eval(f'b"{quoted}"'))


def pattern(text: str) -> re.Pattern[bytes]:
    parts = re.split("(" + "|".join(map(re.escape, PLACEHOLDERS)) + ")", text)
    return re.compile(
        b"".join(PLACEHOLDERS.get(part) or re.escape(unescape(part)) for part in parts) + b"\n"
    )


def steps(path: Path) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line and not line.startswith("#"):
            assert line[0] in "><*$", f"{path.name}:{number}: {line}"
            yield number, line[0], line[2:]


class Session:
    """A live engine and all it wrote."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [*find_engine(), "--mux", "--model", str(MODEL), "--ctx", "64", "--slots", "2"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.output = b""
        self.at = 0
        self.closed = threading.Event()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        assert self.process.stdout is not None
        while chunk := self.process.stdout.read1(65536):
            self.output += chunk
        self.closed.set()

    def expect(self, wanted: re.Pattern[bytes], where: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while (found := wanted.match(self.output, self.at)) is None:
            if self.closed.is_set() or time.monotonic() > deadline or self.mismatch(wanted):
                pytest.fail(f"{where}: wanted {wanted.pattern!r}, got {self.rest()!r}")
            time.sleep(0.002)
        self.at = found.end()

    def mismatch(self, wanted: re.Pattern[bytes]) -> bool:
        """Whether more output cannot help: as many lines are there as the pattern has."""
        lines = wanted.pattern.count(b"\n")
        return self.output.count(b"\n", self.at) > lines and not wanted.match(self.output, self.at)

    def skip(self, optional: re.Pattern[bytes]) -> None:
        while found := optional.match(self.output, self.at):
            self.at = found.end()

    def rest(self) -> bytes:
        return self.output[self.at : self.at + 200]


@pytest.mark.parametrize("path", sorted(HERE.glob("*.txt")), ids=lambda path: path.stem)
def test_the_engine_speaks_as_written(path: Path) -> None:
    session = Session()
    process = session.process
    assert process.stdin is not None
    optional: list[re.Pattern[bytes]] = []
    try:
        for number, kind, text in steps(path):
            where = f"{path.name}:{number}"
            if kind == ">":
                process.stdin.write(unescape(text))
                process.stdin.flush()
            elif kind == "*":
                optional.append(pattern(text))
            elif kind == "<":
                wanted = pattern(text)
                if optional:
                    wanted = re.compile(
                        b"(?:%s)*%s" % (b"|".join(o.pattern for o in optional), wanted.pattern)
                    )
                    optional = []
                session.expect(wanted, where)
            elif text == "eof":
                process.stdin.close()
            else:
                assert process.wait(TIMEOUT_S) == int(text.removeprefix("exit ")), where
                assert session.closed.wait(TIMEOUT_S)
        assert session.rest() == b"", "the transcript does not cover all output"
    finally:
        process.kill()
        process.wait()
        session.reader.join()
        process.stdin.close()
        assert process.stdout is not None
        process.stdout.close()
    check_codec(session.output)


def check_codec(output: bytes) -> None:
    """The codec reads all of it, byte by byte as at once."""
    whole = _core.RecordReader().feed(output)
    reader = _core.RecordReader()
    split = [record for i in range(len(output)) for record in reader.feed(output[i : i + 1])]
    assert split == whole
    assert whole[0] == ("READY", {})
    assert reader.buffered == 0
    assert not {kind for kind, _ in whole} & {"UNKNOWN", "MALFORMED"}
