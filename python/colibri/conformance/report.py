"""What a run of rules prints: a table for people, or JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from colibri.conformance.monitor import RULES
from colibri.conformance.player import ALWAYS, Outcome, Result
from colibri.conformance.transcript import Transcript

MARKS = {"pass": "pass", "fail": "FAIL", "unjudged": "?", "skip": "-"}
RULE_WIDTH = 36


def line(result: Result) -> str:
    """The lines of the table for one rule."""
    text = f"{MARKS[result.outcome]:<5}{result.rule:<{RULE_WIDTH}} {result.tag:<7}"
    if result.outcome == "pass":
        return text.rstrip()
    if result.outcome != "fail":
        return text + result.detail
    parts = [text + result.text, f"     {result.detail}"]
    if result.file:
        parts.append(f"     file: {result.file}")
    if result.sent:
        parts.append(f"     sent: {visible(result.sent)}")
    if result.seen:
        parts.append(f"     seen: {visible(result.seen)}")
    return "\n".join(parts)


def listing(transcripts: Sequence[Transcript], tags: Collection[str]) -> str:
    """A line for each rule of these tags: its id, tag, section and text."""
    rules = [(rule.rule, rule.tag, rule.section, rule.text) for rule in transcripts]
    rules += [(ALWAYS + rule.id, rule.tag, rule.section, rule.text) for rule in RULES]
    return "\n".join(
        f"{rule:<{RULE_WIDTH}} {tag:<7}{section:<3}{text}"
        for rule, tag, section, text in sorted(rules)
        if tag in tags
    )


def visible(data: bytes) -> str:
    """Bytes as a transcript writes them."""
    return repr(data)[2:-1].replace("\\n", "\\n\n           ").rstrip()


def summary(outcome: Outcome) -> str:
    """The last line."""
    return (
        f"{outcome.count('pass')} passed, {outcome.count('fail')} failed,"
        f" {outcome.count('unjudged')} not judged,"
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
            "unjudged": outcome.count("unjudged"),
            "skipped": outcome.count("skip"),
            "rules": [
                {
                    "rule": result.rule,
                    "tag": result.tag,
                    "section": result.section,
                    "text": result.text,
                    "outcome": result.outcome,
                    "file": result.file,
                    "detail": result.detail,
                    "sent": result.sent.decode("latin-1"),
                    "seen": result.seen.decode("latin-1"),
                }
                for result in outcome.results
            ],
        },
        indent=2,
    )
