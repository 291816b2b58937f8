"""What a run of rules prints: a table for people, or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from colibri.conformance.player import Outcome, Result

MARKS = {"pass": "pass", "fail": "FAIL", "skip": "-"}
RULE_WIDTH = 36


def line(result: Result) -> str:
    """The lines of the table for one rule."""
    text = f"{MARKS[result.outcome]:<5}{result.rule:<{RULE_WIDTH}} {result.tag:<7}"
    if result.outcome == "pass":
        return text.rstrip()
    if result.outcome == "skip":
        return text + result.detail
    parts = [text + result.text, f"     {result.detail}"]
    if result.seen:
        parts.append(f"     seen: {visible(result.seen)}")
    return "\n".join(parts)


def visible(data: bytes) -> str:
    """Bytes as a transcript writes them."""
    return repr(data)[2:-1].replace("\\n", "\\n\n           ").rstrip()


def summary(outcome: Outcome) -> str:
    """The last line."""
    return (
        f"{outcome.count('pass')} passed, {outcome.count('fail')} failed,"
        f" {outcome.count('skip')} not applicable (judged as {outcome.wire})"
    )


def as_json(outcome: Outcome, command: Sequence[str]) -> str:
    """The whole outcome; bytes seen are Latin-1 text."""
    return json.dumps(
        {
            "command": list(command),
            "wire": outcome.wire,
            "passed": outcome.count("pass"),
            "failed": outcome.count("fail"),
            "skipped": outcome.count("skip"),
            "rules": [
                {
                    "rule": result.rule,
                    "tag": result.tag,
                    "section": result.section,
                    "text": result.text,
                    "outcome": result.outcome,
                    "detail": result.detail,
                    "seen": result.seen.decode("latin-1"),
                }
                for result in outcome.results
            ],
        },
        indent=2,
    )
