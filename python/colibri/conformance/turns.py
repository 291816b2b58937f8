"""What the records of one turn must have in common."""

from __future__ import annotations

from typing import Any

from colibri.conformance.tracks import Command, Tracks
from colibri.conformance.verdict import Judge
from colibri.decimals import decimal

# Alternatives of each token where the environment asks for them and the request says nothing.
DEFAULT_TOPK = 5
# Every six decode steps, doubled: the first token comes from the prefill, and one may be held back.
DATA_WITHOUT_HITS = 12


class Turn:
    """What was seen of an accepted request."""

    def __init__(self, submits: set[Command]) -> None:
        self.submits = submits
        self.prompt_tokens: int | None = None
        self.prefilled: int | None = None
        self.data = 0
        self.data_without_hits = 0
        # The beginning of a character that the last bytes are.
        self.unfinished = b""


class Turns:
    """The turns in flight.

    Args:
        judge: told what is checked.
        tracks: knows which record can belong to which request.
        wire: full, seed or upstream.
    """

    def __init__(self, judge: Judge, tracks: Tracks, wire: str) -> None:
        self._judge = judge
        self._tracks = tracks
        self._wire = wire
        self._turns: dict[int, Turn] = {}
        self._ctx: int | None = None
        self._vocab: int | None = None
        # The last record, if it was DATA: its turn, which a TOPK may follow.
        self._last: tuple[int, Turn] | None = None
        self._default_topk: int | None = None

    def set_limits(self, ctx: int | None, vocab: int | None) -> None:
        """Takes what CAPS tells."""
        self._ctx, self._vocab = ctx, vocab

    def hits_came(self, *, in_block: bool) -> None:
        """A HITS record came."""
        for turn in self._turns.values():
            if turn.data_without_hits and not in_block:
                self._judge.check("hits-cadence", True)
            turn.data_without_hits = 0

    def record(self, kind: str, fields: dict[str, Any], raw: bytes) -> None:
        """Takes a record of a turn."""
        if kind != "TOPK":
            self.close_data(raw)
        request = fields["id"]
        limited = kind == "DONE" and fields["length_limited"]
        submits = self._tracks.record(request, kind, raw, limited=limited)
        if not submits:
            self._turns.pop(request, None)
            self._last = None
            return
        turn = self._turns.setdefault(request, Turn(submits))
        match kind:
            case "ACCEPT":
                self._accept(turn, fields["prompt_tokens"], raw)
            case "PREFILL":
                self._prefill(turn, fields["done"], fields["total"], raw)
            case "DATA":
                self._data(request, turn, fields["data"], raw)
            case "TOPK":
                self._topk(request, turn, fields["tokens"], raw)
            case "DONE":
                self._done(turn, fields, raw)
                del self._turns[request]

    def error(self, fields: dict[str, Any], raw: bytes) -> None:
        """Takes an ERROR."""
        self.close_data(raw)
        code, detail = fields["code"], fields["detail"]
        if code == "CONTEXT_EXCEEDED":
            numbers = [number for word in detail if (number := decimal(word)) is not None]
            kept = len(numbers) >= 2 and numbers[0] > numbers[1]
            if kept and self._ctx is not None:
                kept = numbers[1] == self._ctx - 1
            self._judge.check("context", kept, f"details {detail} with ctx {self._ctx}", raw)
        self._tracks.error(fields["id"], code, raw)
        if not self._tracks.is_active(fields["id"]):
            self._turns.pop(fields["id"], None)

    def close_data(self, raw: bytes) -> None:
        """Notes that whatever came is no TOPK of the DATA before it."""
        if self._last is None:
            return
        request, turn = self._last
        self._last = None
        if self._wire == "upstream":
            return
        wanted = self._wanted_topk(turn)
        if wanted == {None}:
            self._default_topk = 0
        else:
            detail = f"no TOPK behind DATA of {request}"
            self._judge.check("topk-place", bool(wanted & {None, 0}), detail, raw)

    def _accept(self, turn: Turn, prompt_tokens: int, raw: bytes) -> None:
        turn.prompt_tokens = prompt_tokens
        kept = prompt_tokens >= 1 and (self._ctx is None or prompt_tokens < self._ctx)
        self._judge.check("context", kept, f"{prompt_tokens} prompt tokens accepted", raw)

    def _prompt_tokens(self, turn: Turn, count: int, raw: bytes) -> None:
        if turn.prompt_tokens is None:
            turn.prompt_tokens = count
        detail = f"{turn.prompt_tokens} before, {count} now"
        self._judge.check("prompt-tokens", count == turn.prompt_tokens, detail, raw)

    def _prefill(self, turn: Turn, done: int, total: int, raw: bytes) -> None:
        self._prompt_tokens(turn, total, raw)
        check = self._judge.check
        if turn.prefilled is None:
            check("prefill", done < total, "the whole prompt is said to be reused", raw)
        else:
            check("prefill", turn.prefilled <= done, f"{turn.prefilled} before, {done} now", raw)
        check("prefill", done <= total, f"{done} of {total}", raw)
        check("prefill", turn.data == 0, "PREFILL behind DATA", raw)
        turn.prefilled = done

    def _data(self, request: int, turn: Turn, data: bytes, raw: bytes) -> None:
        check = self._judge.check
        if self._wire == "full" and turn.data == 0:
            check("prefill", turn.prefilled is not None, "DATA without PREFILL", raw)
        if data:
            # What cannot become a character may go out at any time.
            split = turn.unfinished != b"" and _begins_character(turn.unfinished + data[:1])
            check("utf8", not split, "a character is split between DATA records", raw)
            turn.unfinished = _unfinished(data)
        turn.data += 1
        turn.data_without_hits += 1
        if self._wire != "upstream" and turn.data_without_hits > DATA_WITHOUT_HITS:
            detail = f"{turn.data_without_hits} DATA of one turn without HITS"
            check("hits-cadence", False, detail, raw)
            turn.data_without_hits = 0
        most = max(submit.max_tokens for submit in turn.submits)
        check("data-count", turn.data <= most, f"{turn.data} DATA of at most {most}", raw)
        self._last = request, turn

    def _wanted_topk(self, turn: Turn) -> set[int | None]:
        """How many alternatives each token may have; ``None`` is as many as the engine likes."""
        wanted = {self._default_topk if s.topk is None else s.topk for s in turn.submits}
        if self._vocab is None:
            return wanted
        return {None if topk is None else min(topk, self._vocab) for topk in wanted}

    def _topk(
        self, request: int, turn: Turn, tokens: list[tuple[float, bytes]], raw: bytes
    ) -> None:
        check = self._judge.check
        follows = self._last is not None and self._last[0] == request
        self._last = None
        if not check("topk-place", follows, "TOPK is not right behind its DATA", raw):
            return
        wanted = self._wanted_topk(turn)
        if wanted == {None}:
            self._default_topk = DEFAULT_TOPK
            wanted = self._wanted_topk(turn)
        kept = bool(wanted & {None, len(tokens)})
        counts = " or ".join(str(count) for count in wanted)
        check("topk-values", kept, f"{len(tokens)} tokens, wanted {counts}", raw)
        logprobs = [logprob for logprob, _ in tokens]
        falling = sorted(logprobs, reverse=True)
        kept = logprobs == falling and all(logprob <= 0 for logprob in logprobs)
        check("topk-values", kept, f"logprobs {logprobs}", raw)

    def _done(self, turn: Turn, fields: dict[str, Any], raw: bytes) -> None:
        check = self._judge.check
        emitted = fields["emitted"]
        self._prompt_tokens(turn, fields["prompt_tokens"], raw)
        check("data-count", emitted == turn.data, f"{turn.data} DATA, {emitted} emitted", raw)
        check("rates", 0 <= fields["hit_pct"] <= 100, f"hit_pct {fields['hit_pct']}", raw)
        if emitted < 2:
            check("rates", fields["tok_s"] == 0, f"tok_s of {emitted} tokens", raw)
        limited = fields["length_limited"]
        expected = {self._limit(submit, fields) == emitted for submit in turn.submits}
        if self._ctx is None:
            # Where the context ends is unknown; only the limit of the request is.
            expected |= {True} if limited else set()
        detail = f"{emitted} tokens, length_limited {int(limited)}"
        check("length-limited", limited in expected, detail, raw)

    def _limit(self, submit: Command, fields: dict[str, Any]) -> int:
        if self._ctx is None:
            return submit.max_tokens
        return min(submit.max_tokens, self._ctx - int(fields["prompt_tokens"]))


def _unfinished(data: bytes) -> bytes:
    """The last bytes that begin a character and lack the rest of it."""
    for length in range(1, min(3, len(data)) + 1):
        if _begins_character(data[-length:]) and data[-length] > 0x7F:
            return data[-length:]
    return b""


def _begins_character(data: bytes) -> bool:
    """Whether the bytes are a character or the beginning of one."""
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError as error:
        return error.start == 0 and error.reason == "unexpected end of data"
