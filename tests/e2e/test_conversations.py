"""Several chats take turns on a server: each computes what is new in it and nothing else."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from colibri.models import demo_folder
from processes import Serving

OPENINGS = ["Tell me a story about a fox.", "Tell me a story about a cat.", "Who are you?"]
QUESTIONS = ["What did it do then?", "Was it happy?", "Where did it live?"]


def serving(*args: str) -> Serving:
    return Serving(None, "serve", str(demo_folder()), "--ctx", "1024", "--slots", "4", *args)


def ask(server: Serving, messages: list[dict[str, str]]) -> dict[str, Any]:
    body = {"messages": messages, "max_tokens": 12, "temperature": 0}
    request = urllib.request.Request(
        f"{server.url()}v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        found: dict[str, Any] = json.load(reply)
    return found


class Chat:
    """A conversation, and how much of each prompt was new."""

    def __init__(self, opening: str) -> None:
        self.messages = [{"role": "user", "content": opening}]
        self.known = 0
        self.answers: list[str] = []

    def turn(self, server: Serving, *, shared: bool = False) -> None:
        usage = (reply := ask(server, self.messages))["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        # The last token of an answer is drawn and not computed, and how an answer is put into
        # tokens again may differ from how it was drawn within its last word.
        assert cached >= self.known - 3, (cached, self.known)
        if not shared and self.known == 0:
            assert cached < usage["prompt_tokens"] // 2 + 8
        self.known = usage["prompt_tokens"] + usage["completion_tokens"]
        answer = reply["choices"][0]["message"]["content"]
        self.answers.append(answer)
        self.messages.append({"role": "assistant", "content": answer})

    def say(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})


@pytest.fixture
def server() -> Iterator[Serving]:
    server = serving()
    yield server
    assert server.end(signal.SIGTERM) == 0
    server.close()


def take_turns(server: Serving, chats: list[Chat]) -> None:
    for question in QUESTIONS:
        for chat in chats:
            chat.turn(server)
            chat.say(question)


def test_chats_that_take_turns_compute_what_is_new(server: Serving) -> None:
    chats = [Chat(opening) for opening in OPENINGS]
    take_turns(server, chats)
    for chat in reversed(chats):
        chat.turn(server)


def test_chats_that_begin_alike_compute_what_is_new(server: Serving) -> None:
    chats = [Chat(OPENINGS[0]) for _ in range(3)]
    for chat in chats:
        chat.turn(server, shared=True)
    for n, chat in enumerate(chats):
        chat.say(QUESTIONS[n])
    for chat in reversed(chats):
        chat.turn(server)
        chat.say(OPENINGS[2])
    for chat in chats:
        chat.turn(server)


def test_chats_go_on_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLIBRI_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("KVSAVE", "1")
    chats = [Chat(opening) for opening in OPENINGS]
    first = serving()
    take_turns(first, chats)
    assert first.end(signal.SIGTERM) == 0
    first.close()
    second = serving()
    # In another order than they have their slots.
    for chat in (chats[2], chats[0], chats[1]):
        chat.turn(second)
    assert second.end(signal.SIGTERM) == 0
    second.close()
    unsaved = serving()
    for chat in chats:
        again = ask(unsaved, chat.messages[:-1])
        assert again["choices"][0]["message"]["content"] == chat.answers[-1]
    assert unsaved.end(signal.SIGTERM) == 0
    unsaved.close()
