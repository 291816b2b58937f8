"""``colibri conformance``: judges an engine by the rules of the serve protocol."""

from __future__ import annotations

import argparse

from colibri.commands.console import terminate_cleanly
from colibri.conformance import report
from colibri.conformance.player import Result, Suite, read_rules
from colibri.conformance.session import Settings


def run(args: argparse.Namespace) -> int:
    """Plays the rules and prints how the engine did; 1 if it broke one."""
    rules = args.rules if args.rules is not None else read_rules()
    if args.list:
        print(report.listing(rules, args.tags))
        return 0
    settings = Settings(args.engine, args.wire, args.timeout, args.start_timeout)

    def tell(result: Result) -> None:
        if not args.json:
            print(report.line(result), flush=True)

    terminate_cleanly()
    outcome = Suite(settings, tell).run(rules, args.tags)
    print(report.as_json(outcome, args.engine) if args.json else report.summary(outcome))
    return 1 if outcome.count("fail") else 0
