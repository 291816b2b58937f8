"""What may be going on with each request id, given what was sent and what came back.

Bytes cross on the way: a STOP may meet a turn that has ended already. So an id is followed as a
set of states, one for each history of the engine that would explain all records so far. A record
that no history explains breaks a rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from colibri.conformance.verdict import Judge

RULE_OF_CODE = {
    "BAD_REQUEST": "bad-request",
    "BAD_FRAME": "bad-frame",
    "SLOT_BUSY": "slot-busy",
    "DUPLICATE_ID": "duplicate-id",
    "EMPTY_PROMPT": "empty-prompt",
    "CONTEXT_EXCEEDED": "context",
    "NOT_FOUND": "not-found",
    "CANCELLED": "cancel",
    "ENGINE": "one-end",
}
RULE_OF_COMMAND = {
    "SUBMIT": "one-answer",
    "STOP": "stop",
    "CANCEL": "cancel",
    "REFUSED": "bad-request",
    "LOST": "bad-frame",
}
# What people call frames that are not a command.
WORDS = {"REFUSED": "a frame to be refused", "LOST": "a frame whose end is lost"}
NONE = -1


class Command(NamedTuple):
    """A frame that was sent, in which order; the fields behind ``number`` are those of a SUBMIT."""

    kind: str
    number: int = 0
    slot: int = 0
    size: int = 1
    max_tokens: int = 1
    topk: int | None = None
    may_be_refused: bool = False


class State(NamedTuple):
    """One history: commands handled so far, and the SUBMIT that is in flight."""

    handled: int = 0
    turn: int = NONE
    accepted: bool = False
    stopped: bool = False

    def freed(self) -> State:
        """The request has ended."""
        return State(self.handled)

    def passed(self) -> State:
        """One more command is handled, to no effect."""
        return self._replace(handled=self.handled + 1)


class Track:
    """The commands of one id and the states it may be in."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.states: set[State] = {State()}

    def reachable(self) -> set[State]:
        """The states that may be reached without a record."""
        found = set(self.states)
        open_states = list(found)
        while open_states:
            state = open_states.pop()
            command = self.next_command(state)
            if command is None:
                continue
            if command.kind == "SUBMIT" and state.turn == NONE:
                state = State(state.handled + 1, state.handled)
            elif command.kind == "STOP" and state.turn != NONE:
                state = state.passed()._replace(stopped=True)
            else:
                continue
            if state not in found:
                found.add(state)
                open_states.append(state)
        return found

    def next_command(self, state: State) -> Command | None:
        """The command that comes next in a state."""
        return self.commands[state.handled] if state.handled < len(self.commands) else None

    def submits(self) -> set[Command]:
        """The SUBMIT that may be in flight; several where histories differ."""
        return {self.commands[state.turn] for state in self.states if state.turn != NONE}

    @property
    def settled(self) -> bool:
        """Whether nothing can follow."""
        return self.states == {State(len(self.commands))}


class Tracks:
    """Every id in use.

    Args:
        judge: told what is checked.
        with_accept: whether the wire has ACCEPT; without it the first record of a turn accepts.
    """

    def __init__(self, judge: Judge, *, with_accept: bool) -> None:
        self._judge = judge
        self._with_accept = with_accept
        self._sent = 0
        self._tracks: dict[int, Track] = {}
        # Ids whose records cannot be told apart any more, until their next SUBMIT.
        self._spoiled: set[int] = set()
        self._active: set[int] = set()
        # Accepted requests by slot, as far as it is known on which they are.
        self._holders: dict[int, int] = {}
        self.interrupted = False
        self.terminating = False
        self.lost = False

    def command(self, request: int, command: Command) -> None:
        """A frame was sent."""
        self._sent += 1
        command = command._replace(number=self._sent)
        self.lost |= command.kind == "LOST"
        if command.kind == "SUBMIT":
            self._spoiled.discard(request)
        if request not in self._spoiled:
            self._tracks.setdefault(request, Track()).commands.append(command)

    def may_be_active(self) -> bool:
        """Whether a request may be in flight."""
        if self._with_accept:
            return bool(self._active)
        return any(
            state.turn != NONE for track in self._tracks.values() for state in track.reachable()
        )

    def is_active(self, request: int) -> bool:
        """Whether a request was accepted and has not ended."""
        return request in self._active

    def record(self, request: int, kind: str, raw: bytes, *, limited: bool = False) -> set[Command]:
        """A record of a turn came; returns the SUBMIT it may belong to, none if it is stray."""
        track = self._tracks.get(request)
        if request in self._spoiled:
            return set()
        if track is None:
            rule = "one-end" if kind == "DONE" else "in-flight"
            self._judge.check(rule, False, f"{kind} for {request}, which is not in flight", raw)
            return set()
        reachable = track.reachable()
        after = set(self._after(track, reachable, kind, limited=limited))
        if not after:
            self._blame(request, track, reachable, kind, raw)
            return set()
        if kind == "DONE":
            submits = {track.commands[state.turn] for state in reachable if state.turn != NONE}
            self._judge.check("one-end", True)
            if any(state.stopped for state in reachable):
                self._judge.check("stop", True)
            self._release(request)
        else:
            was_accepted = any(state.accepted for state in track.states)
            track.states = after
            submits = track.submits()
            self._judge.check("one-answer" if kind == "ACCEPT" else "in-flight", True)
            if not was_accepted:
                self._hold(request, submits, raw)
        self._move(request, track, after)
        return submits

    def error(self, request: int, code: str, raw: bytes) -> None:
        """An ERROR came."""
        if not self._judge.check("error-code", code in RULE_OF_CODE, f"code {code}", raw):
            code = "ENGINE"
        if request in self._spoiled:
            return
        track = self._tracks.get(request)
        if track is None:
            detail = f"{code} for {request}, which nothing was asked of"
            self._judge.check(RULE_OF_CODE[code], False, detail, raw)
            return
        reachable = track.reachable()
        after = set(self._after_error(track, reachable, code))
        if not after:
            self._blame(request, track, reachable, code, raw)
            return
        self._judge.check(RULE_OF_CODE[code], True)
        if code in ("SLOT_BUSY", "DUPLICATE_ID"):
            self._check_slot(request, track, reachable, code, raw)
        if code in ("CANCELLED", "ENGINE", "EMPTY_PROMPT", "CONTEXT_EXCEEDED"):
            self._release(request)
        self._move(request, track, after)

    def end(self) -> None:
        """Nothing more comes: every id must be explained by a history that is over."""
        for request, track in self._tracks.items():
            reachable = track.reachable()
            over = [state for state in reachable if state.turn == NONE]
            if any(self.terminating or track.next_command(state) is None for state in over):
                continue
            rule, detail = self._missing(track, reachable)
            self._judge.check(rule, False, f"request {request}: {detail}")
        self._tracks.clear()

    def _move(self, request: int, track: Track, states: set[State]) -> None:
        track.states = states
        if track.settled:
            del self._tracks[request]

    def _after(
        self, track: Track, reachable: set[State], kind: str, *, limited: bool
    ) -> Iterator[State]:
        for state in reachable:
            if state.turn == NONE or track.commands[state.turn].size == 0:
                continue
            if kind == "ACCEPT":
                if not state.accepted:
                    yield state._replace(accepted=True)
            elif state.accepted or not self._with_accept:
                if kind != "DONE":
                    yield state._replace(accepted=True)
                elif not (limited and state.stopped):
                    yield state.freed()

    def _after_error(self, track: Track, reachable: set[State], code: str) -> Iterator[State]:
        for state in reachable:
            command = track.next_command(state)
            kind = command.kind if command is not None else ""
            is_free = state.turn == NONE
            match code:
                case "BAD_REQUEST":
                    refusable = command is not None and command.may_be_refused
                    if kind == "REFUSED" or refusable or (kind == "SUBMIT" and self.terminating):
                        yield state.passed()
                case "BAD_FRAME":
                    if kind == "LOST":
                        yield state.passed()
                case "SLOT_BUSY":
                    if kind == "SUBMIT":
                        yield state.passed()
                case "DUPLICATE_ID":
                    if kind == "SUBMIT" and not is_free:
                        yield state.passed()
                case "EMPTY_PROMPT" | "CONTEXT_EXCEEDED":
                    if not is_free and not state.accepted:
                        yield state.freed()
                case "NOT_FOUND":
                    if kind in ("STOP", "CANCEL") and is_free:
                        yield state.passed()
                case "CANCELLED":
                    if kind == "CANCEL" and not is_free:
                        yield state.passed().freed()
                    elif self.interrupted and not is_free and not state.accepted:
                        yield state.freed()
                case _:
                    if not is_free:
                        yield state.freed()

    # --- slots ---

    def _hold(self, request: int, submits: set[Command], raw: bytes) -> None:
        self._active.add(request)
        slots = {submit.slot for submit in submits}
        if len(slots) != 1:
            return
        slot = slots.pop()
        other = self._holders.get(slot)
        detail = f"{request} was accepted while {other} is on slot {slot}"
        self._judge.check("slot-busy", other is None, detail, raw)
        self._holders[slot] = request

    def _release(self, request: int) -> None:
        self._active.discard(request)
        self._holders = {slot: id_ for slot, id_ in self._holders.items() if id_ != request}

    def _check_slot(
        self, request: int, track: Track, reachable: set[State], code: str, raw: bytes
    ) -> None:
        due = {track.next_command(state) for state in reachable}
        refused = [command for command in due if command and command.kind == "SUBMIT"]
        if code == "DUPLICATE_ID":
            busy = all(submit.slot in self._holders for submit in refused)
            detail = f"{request} was refused as a duplicate, but its slot is busy too"
            self._judge.check("check-order", not busy, detail, raw)
        elif not any(submit.slot in self._holders for submit in refused):
            detail = f"{request} was refused, but nothing is on slot {refused[0].slot}"
            self._judge.check("slot-busy", any(map(self._may_be_busy, refused)), detail, raw)

    def _may_be_busy(self, submit: Command) -> bool:
        """Whether a request that was sent before ``submit`` may be on its slot."""
        return any(
            (other := track.commands[state.turn]).slot == submit.slot
            and other.number < submit.number
            for track in self._tracks.values()
            for state in track.reachable()
            if state.turn != NONE
        )

    # --- what went wrong ---

    def _blame(
        self, request: int, track: Track, reachable: set[State], what: str, raw: bytes
    ) -> None:
        """Finds the rule that an unexplained record breaks, and gives its id up."""
        due = {command for state in reachable if (command := track.next_command(state))}
        kinds = {command.kind for command in due}
        begun = {track.commands[state.turn] for state in reachable if state.turn != NONE}
        accepted = any(state.accepted for state in reachable)
        if "REFUSED" in kinds:
            rule = "bad-request"
        elif "LOST" in kinds:
            rule = "bad-frame"
        elif not accepted and any(command.size == 0 for command in begun):
            rule = "empty-prompt"
        elif what == "DONE" and any(state.stopped for state in reachable):
            rule = "stop"
        elif what in ("ACCEPT", "DONE"):
            rule = "one-answer" if what == "ACCEPT" else "one-end"
        elif what in RULE_OF_CODE:
            rule = RULE_OF_CODE[what]
        else:
            rule = "one-answer" if begun and not accepted else "in-flight"
        expected = ", ".join(WORDS.get(kind, kind) for kind in sorted(kinds)) or "nothing"
        detail = f"{what} for {request}; still to be answered there: {expected}"
        self._judge.check(rule, False, detail, raw)
        self._release(request)
        self._spoiled.add(request)
        del self._tracks[request]

    def _missing(self, track: Track, reachable: set[State]) -> tuple[str, str]:
        state = max(reachable)
        command = track.next_command(state)
        if command is not None:
            return RULE_OF_COMMAND[
                command.kind
            ], f"no answer to {WORDS.get(command.kind, command.kind)}"
        if state.accepted:
            return "one-end", "neither DONE nor ERROR"
        if track.commands[state.turn].size == 0:
            return "empty-prompt", "no EMPTY_PROMPT"
        return "one-answer", "neither ACCEPT nor ERROR"
