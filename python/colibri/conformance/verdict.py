"""The rules that a conversation with an engine is judged by.

Each has the tag that ``docs/protocol.md`` gives it: *seed* what the specification fixes, *compat*
what the C engine was measured to do, *ours* what was chosen where both are silent. An engine of
somebody else is judged on the first alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

# Bytes of what was seen that a finding keeps.
SEEN_BYTES = 240


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the protocol: its tag, and the section of ``docs/protocol.md`` that states it."""

    id: str
    tag: str
    section: str
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that was broken, what about it, and the bytes that show it."""

    rule: str
    detail: str
    seen: bytes


RULES: tuple[Rule, ...] = (
    Rule("handshake", "seed", "1", "READY, STAT, HWINFO, GPUS, TIERS, EMAP come first, in order"),
    Rule("caps", "ours", "1", "CAPS ends the handshake: proto, ctx, slots, vocab, model, submit"),
    Rule("quiet-start", "ours", "1", "nothing is written before READY"),
    Rule("syntax", "seed", "1", "every record of a known kind can be read"),
    Rule("format", "ours", "1", "fields are written in the documented formats"),
    Rule("kinds", "ours", "4", "only the records of the wire mode are sent"),
    Rule("one-answer", "compat", "3", "every SUBMIT is answered by one ACCEPT or ERROR"),
    Rule("one-end", "seed", "3", "every accepted request ends once, by DONE or ERROR"),
    Rule("in-flight", "seed", "3", "no record names a request that is not in flight"),
    Rule("bad-request", "seed", "2", "a delimited frame with a fault is answered by BAD_REQUEST"),
    Rule("bad-frame", "seed", "2", "a lost frame boundary is BAD_FRAME, and nothing more is read"),
    Rule("slot-busy", "seed", "2", "SLOT_BUSY if and only if a request is on the slot"),
    Rule("duplicate-id", "seed", "2", "DUPLICATE_ID if and only if the id is in flight"),
    Rule("check-order", "compat", "2", "SLOT_BUSY is checked before DUPLICATE_ID"),
    Rule("empty-prompt", "seed", "2", "a prompt of 0 bytes is answered by EMPTY_PROMPT"),
    Rule("context", "compat", "2", "CONTEXT_EXCEEDED tells the true count and the limit CTX-1"),
    Rule("not-found", "seed", "2", "NOT_FOUND answers STOP and CANCEL of ids not in flight"),
    Rule("stop", "compat", "2", "STOP ends a turn as a success, not length-limited"),
    Rule("cancel", "seed", "2", "CANCEL ends a request in flight with CANCELLED, once"),
    Rule("error-code", "seed", "2", "ERROR has a documented code"),
    Rule("data-count", "seed", "3", "emitted is the number of DATA records"),
    Rule("prompt-tokens", "ours", "3", "ACCEPT, PREFILL and DONE agree on the prompt's tokens"),
    Rule("prefill", "ours", "3", "PREFILL comes before DATA, never falls, stays below its total"),
    Rule("length-limited", "seed", "3", "length_limited if and only if max_tokens or context end"),
    Rule("utf8", "ours", "3", "no DATA but the last ends within a character"),
    Rule("topk-place", "seed", "3", "TOPK follows its DATA, for every token or none"),
    Rule("topk-values", "seed", "3", "TOPK has the wanted count, logprobs of at most 0 descending"),
    Rule("block", "seed", "3", "telemetry comes in the block before DONE, in its order"),
    Rule("hits-active", "seed", "3", "HITS outside the block only while a request is active"),
    Rule("hits-cadence", "seed", "3", "HITS come about every six decode steps"),
    Rule("rates", "ours", "3", "hit_pct is 0 to 100, tok_s is 0.00 below two tokens"),
    Rule("geometry", "seed", "4", "EMAP and HITS keep one geometry and no bit beyond it"),
    Rule("tier-sum", "seed", "4", "TIERS sums to rows x cols"),
    Rule("tier-bits", "seed", "4", "EMAP's tiers agree with TIERS"),
    Rule("heat", "ours", "4", "heat never falls"),
    Rule("entropy", "ours", "4", "ENTROPY has a value of 0 to log2(cols) for each row"),
    Rule("repin", "seed", "4", "REPIN names an expert of the map"),
    Rule("hwinfo", "seed", "4", "available memory is within the total"),
    Rule("whole-records", "seed", "1", "the output ends at the end of a record"),
    Rule("after-end", "seed", "2", "nothing is written after the end"),
    Rule("exit-code", "ours", "2", "the exit code is 0, or 3 after BAD_FRAME"),
)


class Judge:
    """Collects what broke a rule, the first of each, and how often each rule was checked."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.exercised: Counter[str] = Counter()

    def check(self, rule: str, kept: bool, detail: str = "", seen: bytes = b"") -> bool:
        """Notes one check of a rule; returns whether it was kept."""
        self.exercised[rule] += 1
        if not kept and all(finding.rule != rule for finding in self.findings):
            self.findings.append(Finding(rule, detail, seen[:SEEN_BYTES]))
        return kept

    def take(self) -> list[Finding]:
        """The findings so far; the next of each rule is noted again."""
        findings, self.findings = self.findings, []
        return findings
