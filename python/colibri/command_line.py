"""The arguments of the ``colibri`` command.

Nothing heavy is imported, so that ``--help`` answers at once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from colibri import streams
from colibri.conformance.transcript import TAGS, WIRES, Transcript, TranscriptError

MODEL_HELP = (
    "model folder, or 'demo' for the model that comes with colibri; default: what the environment "
    "variable COLI_MODEL says, else demo"
)
MAX_SLOTS = 16
# Of the server; what the other commands say of memory is about the same.
DEFAULT_SLOTS = 4


class _Parser(argparse.ArgumentParser):
    """A parser whose errors look like all our errors."""

    def error(self, message: str) -> NoReturn:
        report(message, f"see '{self.prog} --help'")
        sys.exit(2)

    def _print_message(self, message: str, file: Any = None) -> None:
        # The base class hides that nothing could be written.
        (file or sys.stderr).write(message)
        (file or sys.stderr).flush()


def report(message: str, hint: str | None = None) -> None:
    """Prints an error the way every command does."""
    # Where nothing can be written, the exit code has to do.
    with contextlib.suppress(OSError):
        print(f"error: {streams.one_line(message)}", file=sys.stderr)
        if hint is not None:
            print(f"hint: {streams.one_line(hint)}", file=sys.stderr)


def _integer(low: int, high: int) -> Callable[[str], int]:
    def integer(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError("must be an integer") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be from {low} to {high}")
        return value

    return integer


def _number(low: float, high: float, *, above_low: bool = False) -> Callable[[str], float]:
    def number(text: str) -> float:
        try:
            # Minus zero is zero, and the wire takes no sign.
            value = float(text) + 0.0
        except ValueError:
            raise argparse.ArgumentTypeError("must be a number") from None
        if not low <= value <= high or (above_low and value == low):
            most = f"{high:,.15g}"
            bound = f"above {low:g}, at most {most}" if above_low else f"from {low:g} to {most}"
            raise argparse.ArgumentTypeError(f"must be {bound}")
        return value

    return number


def _tags(text: str) -> tuple[str, ...]:
    tags = tuple(text.split(","))
    if not set(tags) <= set(TAGS):
        raise argparse.ArgumentTypeError(f"must be a comma list of {', '.join(TAGS)}")
    return tags


def _with_rules_of(text: str) -> list[Transcript]:
    # Other commands need not read rules.
    from colibri.conformance.player import read_rules

    try:
        return read_rules(Path(text))
    except TranscriptError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{error.filename}: {error.strerror}") from None


def _engine_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--ram",
        type=_number(0, 1e6, above_low=True),
        metavar="GB",
        help="memory budget in GB (1e9 bytes); default: what is available",
    )
    group.add_argument(
        "--ctx",
        type=_integer(16, 1 << 24),
        metavar="N",
        help="most tokens of prompt and answer together; default: 4096, or less if the model "
        "was made for less",
    )
    group.add_argument(
        "--threads",
        type=_integer(1, 1024),
        metavar="N",
        help="worker threads; default: one per allowed core",
    )


def _device_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--vram",
        type=_number(0, 1e6, above_low=True),
        metavar="GB",
        help="memory of the device that COLIBRI_DEVICE names for experts, in GB (1e9 bytes)",
    )


def _sampling_arguments(parser: argparse.ArgumentParser, *, max_tokens: str) -> None:
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--max-tokens",
        type=_integer(1, 2**31 - 1),
        metavar="N",
        help=f"most tokens of an answer; default: {max_tokens}",
    )
    group.add_argument(
        "--temperature",
        type=_number(0, 2),
        metavar="T",
        help="0 always takes the likeliest token; default: what the model suggests",
    )
    group.add_argument(
        "--top-p",
        type=_number(0, 1, above_low=True),
        metavar="P",
        help="draw from the likeliest tokens that together have this probability; 1 draws from "
        "all; default: what the model suggests",
    )
    group.add_argument(
        "--top-k",
        type=_integer(0, 2**31 - 1),
        metavar="K",
        help="draw from the K likeliest tokens; 0, the default, draws from all",
    )
    group.add_argument(
        "--min-p",
        type=_number(0, 1),
        metavar="P",
        help="drop tokens less likely than this fraction of the likeliest; default: 0",
    )
    group.add_argument(
        "--repetition-penalty",
        type=_number(0, 10, above_low=True),
        metavar="X",
        help="makes tokens of prompt and answer less likely, if above 1; default: 1",
    )
    group.add_argument(
        "--presence-penalty",
        type=_number(-2, 2),
        metavar="X",
        help="makes tokens of the answer less likely; default: 0",
    )
    group.add_argument(
        "--frequency-penalty",
        type=_number(-2, 2),
        metavar="X",
        help="the same for each time that they occurred; default: 0",
    )
    group.add_argument(
        "--seed", type=_integer(0, 2**64 - 1), metavar="N", help="makes the draw repeatable"
    )


def _slots_argument(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--slots",
        type=_integer(1, MAX_SLOTS),
        default=DEFAULT_SLOTS,
        metavar="N",
        help=f"requests that run at once, each with its own KV memory (default: {DEFAULT_SLOTS})",
    )


def _serve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)
    _engine_arguments(parser)
    _device_argument(parser)
    group = parser.add_argument_group("server")
    group.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
    )
    group.add_argument(
        "--port",
        type=_integer(0, 65535),
        default=8000,
        metavar="PORT",
        help="port to listen on; 0 takes any free one (default: 8000)",
    )
    _slots_argument(group)
    group.add_argument(
        "--max-queue",
        type=_integer(0, 100_000),
        default=64,
        metavar="N",
        help="requests that may wait for a slot; more are refused with 429 (default: 64)",
    )
    group.add_argument(
        "--api-key",
        default=os.environ.get("COLIBRI_API_KEY"),
        metavar="KEY",
        help="key that requests need; better set COLIBRI_API_KEY, which 'ps' does not show",
    )
    group.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="further host name that requests may be addressed to; '*' for all; repeatable",
    )
    group.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="origin of web pages that may call the server, like https://app.example; repeatable",
    )
    group.add_argument(
        "--no-telemetry", action="store_true", help="leave the 'colibri' object out of replies"
    )
    group.add_argument("--model-id", metavar="NAME", help="name the model is served under")
    group.add_argument("--verbose", action="store_true", help="log every request")


def _conformance_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "engine",
        nargs="*",
        metavar="COMMAND",
        help="what starts the engine; it is told by environment variables to speak mux",
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--json", action="store_true", help="as JSON")
    group.add_argument(
        "--list", action="store_true", help="print the rules, with tag and section; starts nothing"
    )
    parser.add_argument(
        "--rules",
        type=_with_rules_of,
        metavar="DIR",
        help="play the rules in the .txt files of this folder too",
    )
    parser.add_argument(
        "--tags",
        type=_tags,
        default=TAGS,
        metavar="LIST",
        help="only the rules from there: seed (the specification), compat (the C engine), ours",
    )
    parser.add_argument(
        "--wire",
        choices=WIRES,
        help="wire mode, set as COLIBRI_WIRE; default: not set, and judged as full if the "
        "engine sends CAPS, else as seed",
    )
    parser.add_argument(
        "--timeout",
        type=_number(0, 86400, above_low=True),
        default=10.0,
        metavar="S",
        help="seconds after which a record does not come any more (default: 10)",
    )
    parser.add_argument(
        "--start-timeout",
        type=_number(0, 86400, above_low=True),
        default=120.0,
        metavar="S",
        help="seconds that the engine may take to load (default: 120)",
    )


def _convert_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("src", metavar="SRC", help="model folder in floats or packed integers")
    parser.add_argument(
        "dst",
        nargs="?",
        metavar="DST",
        help="folder to write; the same command goes on where it was ended",
    )
    group = parser.add_argument_group("formats")
    group.add_argument(
        "--experts", choices=("int4", "int8"), default="int4", help="routed experts (default: int4)"
    )
    group.add_argument(
        "--group",
        type=_integer(0, 1 << 16),
        default=64,
        metavar="N",
        help="inputs that share a scale: 32, 64 or 128 (default: 64)",
    )
    group.add_argument(
        "--dense",
        choices=("int4", "int8", "bf16", "keep"),
        default="int8",
        help="other matrices of the layers; keep leaves them as they are (default: int8)",
    )
    group.add_argument(
        "--head",
        choices=("int8", "bf16"),
        default="int8",
        help="embedding and output head (default: int8)",
    )
    group.add_argument(
        "--mtp",
        choices=("int8", "keep"),
        default="int8",
        help="layers that predict further tokens; they are of no use with fewer bits "
        "(default: int8)",
    )
    parser.add_argument(
        "--threads",
        type=_integer(1, 1024),
        metavar="N",
        help="worker threads; default: one per allowed core",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be written, by kind"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare every byte with the manifest: after converting, or of SRC if there is no DST",
    )


def _trace_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    record = actions.add_parser("record", help="write which experts each token of a text takes")
    record.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)
    record.add_argument("--text", type=Path, required=True, metavar="FILE", help="the text, UTF-8")
    record.add_argument(
        "--tokens",
        type=_integer(1, 1 << 24),
        default=4096,
        metavar="N",
        help="of its beginning (default: 4096)",
    )
    record.add_argument(
        "--ram", type=_number(0, 1e6, above_low=True), metavar="GB", help="memory budget"
    )
    record.add_argument(
        "--output", "-o", type=Path, required=True, metavar="TRACE", help="file to write (.npz)"
    )
    replay = actions.add_parser("replay", help="how a cache of experts serves a trace")
    replay.add_argument("trace", type=Path, metavar="TRACE", help="a recorded trace")
    replay.add_argument(
        "--slots", type=_integer(1, 1 << 32), required=True, metavar="N", help="experts it holds"
    )
    replay.add_argument(
        "--rule",
        choices=("learned", "lru", "optimal"),
        default="learned",
        help="what it gives up: as the engine does (default), what was used longest ago, or with "
        "knowledge of the future",
    )
    compare = actions.add_parser("compare", help="a table of caches of several sizes")
    compare.add_argument("traces", type=Path, nargs="+", metavar="TRACE", help="recorded traces")
    compare.add_argument("--json", action="store_true", help="as JSON")


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    measurements = parser.add_subparsers(dest="measurement", metavar="MEASUREMENT", required=True)
    quality = measurements.add_parser(
        "quality", help="what each format of weights costs in predictions, against f32"
    )
    quality.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)
    quality.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="DIR",
        help="measure this folder of the same model too, in whatever format; repeatable",
    )
    quality.add_argument(
        "--text",
        type=Path,
        metavar="FILE",
        help="predict this text; default: stories that the demo model was never asked for",
    )
    quality.add_argument(
        "--tokens",
        type=_integer(2, 1 << 20),
        default=2048,
        metavar="N",
        help="predict at most N tokens of the text (default: 2048)",
    )
    quality.add_argument("--json", action="store_true", help="as JSON")
    disk = measurements.add_parser(
        "disk", help="what a drive gives at the engine's block sizes and depths"
    )
    disk.add_argument(
        "file", type=Path, metavar="FILE", help="a large file of the drive, as a shard"
    )
    disk.add_argument(
        "--seconds",
        type=_number(0.01, 3600),
        default=1.0,
        metavar="S",
        help="time for each of 30 measurements (default: 1)",
    )
    disk.add_argument("--json", action="store_true", help="as JSON")
    stream = measurements.add_parser(
        "stream",
        help="answers with less memory than the experts need, beside the drive's own speed",
    )
    stream.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)
    stream.add_argument(
        "--tokens",
        type=_integer(2, 1 << 20),
        default=64,
        metavar="N",
        help="answer N tokens, twice (default: 64)",
    )
    stream.add_argument("--json", action="store_true", help="as JSON")
    _engine_arguments(stream)
    _device_argument(stream)


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line."""
    parser = _Parser(
        prog="colibri",
        description="Run Mixture-of-Experts models whose experts do not fit in memory.",
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    serve = commands.add_parser("serve", help="serve the OpenAI-compatible API and the web page")
    _serve_arguments(serve)
    serve.set_defaults(open_browser=False)

    web = commands.add_parser("web", help="like serve, and open the page in the browser")
    _serve_arguments(web)
    web.set_defaults(open_browser=True)

    chat = commands.add_parser("chat", help="talk to a model in the terminal")
    chat.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)
    _engine_arguments(chat)
    _device_argument(chat)
    _sampling_arguments(chat, max_tokens="what the context leaves")
    chat.add_argument("--system", metavar="TEXT", help="system message")
    chat.add_argument(
        "--legacy",
        action="store_true",
        help="speak the protocol of one answer at a time, which older engines know; answers have "
        "256 tokens then, unless --max-tokens says otherwise, and /more continues them",
    )

    run = commands.add_parser("run", help="print the continuation of a prompt")
    run.add_argument("prompt", metavar="PROMPT", help="the text; '-' reads it from stdin")
    run.add_argument("--model", metavar="MODEL", help=MODEL_HELP)
    mode = run.add_mutually_exclusive_group()
    mode.add_argument(
        "--raw",
        dest="as_chat",
        action="store_false",
        help="continue the text as it stands (default)",
    )
    mode.add_argument(
        "--chat", dest="as_chat", action="store_true", help="ask it, by the model's chat template"
    )
    run.set_defaults(as_chat=False)
    run.add_argument(
        "--stats",
        action="store_true",
        help="then say on stderr what it cost: speed, time by phase, where experts were, memory, "
        "and what limits it",
    )
    _engine_arguments(run)
    _device_argument(run)
    _sampling_arguments(run, max_tokens="256")

    info = commands.add_parser("info", help="say what a model folder holds")
    info.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)
    info.add_argument("--json", action="store_true", help="as JSON")

    doctor = commands.add_parser(
        "doctor",
        help="find what is in the way of running a model; exit code 1 if there is something",
    )
    doctor.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)
    doctor.add_argument(
        "--deep",
        action="store_true",
        help="read every byte: compare hashes where the model has them, look for values that are "
        "not finite",
    )
    doctor.add_argument("--json", action="store_true", help="as JSON")
    _engine_arguments(doctor)
    _device_argument(doctor)
    _slots_argument(doctor)

    plan = commands.add_parser(
        "plan",
        help="say what of a model would be in memory and how fast it may be, without loading it; "
        "exit code 1 if it does not fit",
    )
    plan.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)
    plan.add_argument("--json", action="store_true", help="as JSON")
    _engine_arguments(plan)
    _device_argument(plan)
    _slots_argument(plan)

    convert = commands.add_parser(
        "convert",
        usage="colibri convert SRC DST [options]\n       colibri convert --verify DST",
        help="write a model's weights smaller, as the engine reads them fastest",
    )
    _convert_arguments(convert)

    bench = commands.add_parser("bench", help="measure models")
    _bench_arguments(bench)

    trace = commands.add_parser(
        "trace", help="record which experts a text takes, and compare caches on it"
    )
    _trace_arguments(trace)

    fake = commands.add_parser(
        "fake-engine", help="play a scripted engine on stdin and stdout, to test servers with"
    )
    fake.add_argument(
        "script",
        metavar="SCRIPT",
        help="a scenario (.json) or a transcript (.txt); see docs/fake-engine.md",
    )
    ignored = fake.add_argument(
        "engine_arguments",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="what servers start an engine with; ignored",
    )
    ignored.required = False  # else messages would ask for it

    conformance = commands.add_parser(
        "conformance",
        usage="colibri conformance [options] -- COMMAND...",
        help="judge an engine by the rules of the serve protocol",
    )
    _conformance_arguments(conformance)
    return parser
