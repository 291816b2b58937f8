"""Golden transcripts of the serve protocol, played against the engine and through the codec."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from colibri import _core
from live import Live

HERE = Path(__file__).parent
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


@pytest.mark.parametrize("path", sorted(HERE.glob("*.txt")), ids=lambda path: path.stem)
def test_the_engine_speaks_as_written(path: Path) -> None:
    optional: list[re.Pattern[bytes]] = []
    with Live() as engine:
        for number, kind, text in steps(path):
            where = f"{path.name}:{number}"
            if kind == ">":
                engine.send(unescape(text))
            elif kind == "*":
                optional.append(pattern(text))
            elif kind == "<":
                wanted = pattern(text)
                if optional:
                    wanted = re.compile(
                        b"(?:%s)*%s" % (b"|".join(o.pattern for o in optional), wanted.pattern)
                    )
                    optional = []
                engine.expect(wanted, where)
            elif text == "eof":
                engine.end_input()
            else:
                assert engine.exit_code() == int(text.removeprefix("exit ")), where
        assert engine.rest() == b"", "the transcript does not cover all output"
    check_codec(engine.output)


def check_codec(output: bytes) -> None:
    """The codec reads all of it, byte by byte as at once."""
    whole = _core.RecordReader().feed(output)
    reader = _core.RecordReader()
    split = [record for i in range(len(output)) for record in reader.feed(output[i : i + 1])]
    assert split == whole
    assert whole[0] == ("READY", {})
    assert reader.buffered == 0
    assert not {kind for kind, _ in whole} & {"UNKNOWN", "MALFORMED"}
