"""The ``colibri`` command: which module runs each subcommand, and how its failures are told.

Nothing heavy is imported before a subcommand runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from colibri import streams
from colibri.command_line import make_parser, report
from colibri.errors import ColibriError, EngineStartError, Terminated

# As shells report a command that ended by Ctrl-C.
EXIT_INTERRUPTED = 130

_MODULES = {
    "serve": "serve",
    "web": "serve",
    "chat": "chat",
    "run": "run",
    "info": "info",
    "doctor": "doctor",
    "plan": "plan",
    "convert": "convert",
    "bench": "bench",
    "trace": "trace",
    "conformance": "conformance",
    "fake-engine": "fake_engine",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    try:
        streams.prepare()
        code = _main(argv)
        if sys.stdout is not None:
            # At exit, a failure would be a traceback.
            sys.stdout.flush()
    except EngineStartError as error:
        report(str(error), error.hint)
        return error.exit_code
    except ColibriError as error:
        report(str(error), error.hint)
        return 1
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Terminated as end:
        report(str(end))
        return end.exit_code
    except BrokenPipeError:
        # The reader of our output has left, as in `colibri run ... | head`.
        streams.give_up_output()
        return 1
    except (OSError, UnicodeError) as error:
        streams.give_up_output()
        report(*streams.explain(error))
        return 1
    return code


def _main(argv: Sequence[str] | None) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.command == "conformance" and not (args.list or "".join(args.engine[:1])):
        parser.error("colibri conformance needs a COMMAND that starts the engine, behind --")
    for name, value in vars(args).items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                streams.check_text(text, name.replace("_", "-"))
    if args.command not in ("serve", "web"):
        reads = args.command == "chat" or (args.command == "run" and args.prompt == "-")
        streams.check_open(stdin=reads)
    if args.version:
        from colibri import __version__

        print(f"colibri {__version__}")
        return 0
    if args.command is None:
        parser.print_help()
        return 0
    streams.check_open_files()
    module = import_module(f"colibri.commands.{_MODULES[args.command]}")
    code: int = module.run(args)
    return code
