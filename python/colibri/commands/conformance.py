"""``colibri conformance``: judges an engine by the rules of the serve protocol."""

from __future__ import annotations

import argparse

from colibri.conformance import report
from colibri.conformance.player import Result, Settings, Suite, read_rules


def run(args: argparse.Namespace) -> int:
    """Plays the rules and prints how the engine did; 1 if it broke one."""
    settings = Settings(args.engine, args.wire, args.timeout, args.start_timeout)

    def tell(result: Result) -> None:
        if not args.json:
            print(report.line(result), flush=True)

    outcome = Suite(settings, tell).run(read_rules(), args.tags)
    print(report.as_json(outcome, args.engine) if args.json else report.summary(outcome))
    return 1 if outcome.count("fail") else 0
