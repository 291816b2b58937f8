"""The commands as processes, over a scripted engine."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import TEMPLATE, FakeEngineFiles
from processes import Serving, assert_refused, colibri, environment

Fake = Callable[..., FakeEngineFiles]


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "fake"}', encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return str(folder)


def test_without_arguments_it_explains_itself() -> None:
    done = colibri()
    assert done.returncode == 0
    for command in ("serve", "web", "chat", "run", "info"):
        assert command in done.stdout


def test_version() -> None:
    done = colibri("--version")
    assert done.stdout.startswith("colibri ")
    assert done.returncode == 0


@pytest.mark.parametrize(
    "args",
    [
        ("bogus",),
        ("serve", "--port", "99999"),
        ("serve", "--slots", "17"),
        ("serve", "--ram", "0"),
        ("serve", "--ctx", "x"),
        ("run",),
        ("run", "x", "--temperature", "3"),
        ("run", "x", "--top-p", "0"),
        ("run", "x", "--raw", "--chat"),
        ("chat", "--no-such-flag"),
    ],
)
def test_arguments_that_cannot_be_used(args: tuple[str, ...]) -> None:
    assert_refused(colibri(*args), 2, "--help")


@pytest.mark.parametrize("command", ["serve", "chat", "info", "run"])
def test_a_missing_model_folder(command: str, tmp_path: Path) -> None:
    where = str(tmp_path / "absent")
    args = ("run", "--model", where, "hi") if command == "run" else (command, where)
    assert_refused(colibri(*args), 1, "no such model folder")


def test_a_taken_port_is_told_before_anything_loads(fake: Fake, model: str) -> None:
    files = fake()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = colibri("serve", model, "--port", port, files=files)
    assert_refused(done, 1, port, "--port")
    assert not Path(f"{files.path}.lives").exists()


def test_the_network_needs_a_key(fake: Fake, model: str) -> None:
    done = colibri("serve", model, "--host", "0.0.0.0", files=fake())
    assert_refused(done, 1, "API key")


def test_run_prints_the_continuation(fake: Fake, model: str) -> None:
    files = fake(tokens=["hex:c3", "hex:bc", " there"])
    done = colibri("run", "--model", model, "Once upon", "--temperature", "0", files=files)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ü there\n", "")
    [line, end] = files.received
    assert line.split()[3:7] == ["9", "64", "0", "0.9"]
    assert end == "EOF"


def test_run_takes_the_prompt_from_stdin_and_the_options(fake: Fake, model: str) -> None:
    files = fake()
    args = ["--seed", "5", "--max-tokens", "2", "--top-p", "0.5"]
    done = colibri("run", "--model", model, "-", *args, files=files, stdin="a b")
    assert done.stdout == "Hello there\n"
    assert files.received[0].split()[3:] == ["3", "2", "0.7", "0.5", "seed=5"]


def test_run_says_what_it_cost_where_it_is_asked_to(fake: Fake, model: str) -> None:
    done = colibri("run", "--model", model, "hi", "--stats", files=fake())
    assert (done.returncode, done.stdout) == (0, "Hello there, friend.\n")
    told = dict(line.split(maxsplit=1) for line in done.stderr.splitlines())
    # The scripted engine tells times, and no uses of experts.
    assert list(told) == ["prompt", "answer", "time", "memory", "limit"]
    assert told["answer"] == "5 tokens: 12.5 tokens/s"
    assert told["time"].startswith("0.5 s: 10.0% waiting for experts, 40.0% experts, ")
    assert told["limit"].startswith("memory bandwidth or the processor: 68% of 0.5 s ")


def test_run_passes_the_sampling_options_on(fake: Fake, model: str) -> None:
    names = "seed,top_k,min_p,presence,frequency,repetition"
    args = ["--top-k", "40", "--min-p", "0.00001", "--repetition-penalty", "1.1"]
    args += ["--presence-penalty", "-0.5", "--frequency-penalty", "-0.0"]
    files = fake(caps=f"proto=1 ctx=64 slots=2 vocab=512 model=fake submit={names} eos=0")
    done = colibri("run", "--model", model, "hi", *args, files=files)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(files.received[0].split()[7:]) == [
        "frequency=0",
        "min_p=0.00001",
        "presence=-0.5",
        "repetition=1.1",
        "top_k=40",
    ]
    assert_refused(
        colibri("run", "--model", model, "hi", *args, files=fake()),
        1,
        "this engine does not support --top-k",
    )


def test_minus_zero_is_zero(fake: Fake, model: str) -> None:
    files = fake()
    done = colibri("run", "--model", model, "hi", "--temperature", "-0.0", files=files)
    assert done.returncode == 0, done.stderr
    assert files.received[0].split()[5] == "0"


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--ctx", "x", "must be an integer"),
        ("--seed", "1.5", "must be an integer"),
        ("--top-p", "x", "must be a number"),
        ("--threads", "1025", "must be from 1 to 1024"),
        ("--temperature", "nan", "must be from 0 to 2"),
    ],
)
def test_a_wrong_number_is_told_in_words(option: str, value: str, words: str) -> None:
    assert_refused(colibri("run", "hi", option, value), 2, option, words)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("serve", ["'demo'", "COLI_MODEL", "(default: 127.0.0.1)", "(default: 8000)"]),
        ("run", ["'demo'", "default: 256", "likeliest tokens"]),
        ("chat", ["'demo'", "what the context leaves", "likeliest tokens"]),
    ],
)
def test_help_tells_what_happens_without_an_option(command: str, words: list[str]) -> None:
    told = " ".join(colibri(command, "--help").stdout.split())
    for word in words:
        assert word in told


def test_run_asks_by_the_chat_template(fake: Fake, model: str) -> None:
    files = fake()
    done = colibri("run", "--model", model, "--chat", "hi", files=files)
    assert done.returncode == 0, done.stderr
    assert files.received[0].split()[3] == str(len("<|user|>hi<|assistant|>"))


def test_an_engine_that_does_not_start_is_reported_once(fake: Fake, model: str) -> None:
    files = fake(
        stderr=["reading", "error: not enough memory", "hint: lower --ctx"], exit_before_ready=1
    )
    done = colibri("run", "--model", model, "hi", files=files)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "reading",
        "error: not enough memory",
        "hint: lower --ctx",
    ]


def test_an_engine_that_dies_is_an_error(fake: Fake, model: str) -> None:
    done = colibri("run", "--model", model, "hi", files=fake(kill_after=2))
    assert done.returncode == 1
    assert done.stdout.startswith("Hello there")
    assert "killed by signal 9" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("line", "error"), [("/nonsense", "unknown command /nonsense"), ("too long", "99 tokens")]
)
def test_chat_goes_on_after_a_line_that_fails_and_says_so_at_the_end(
    fake: Fake, model: str, line: str, error: str
) -> None:
    refused = {"error_after": 0, "error": "CONTEXT_EXCEEDED 99 63"}
    files = fake(prompts={"too long": refused})
    done = colibri("chat", model, files=files, stdin=f"{line}\nhi\n")
    assert done.returncode == 1
    assert done.stdout.strip() == "Hello there, friend."
    assert error in done.stderr


def test_chat_keeps_the_conversation(fake: Fake, model: str) -> None:
    files = fake()
    lines = "hi\n\n/help\nmore\n/reset\nhi\n/quit\nnot read\n"
    done = colibri("chat", model, "--system", "be brief", files=files, stdin=lines)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Hello there, friend.\n" * 3
    system, user, assistant = "<|system|>be brief", "<|user|>", "<|assistant|>"
    first = f"{system}{user}hi{assistant}"
    second = f"{first}Hello there, friend.{user}more{assistant}"
    sizes = [int(line.split()[3]) for line in files.received[:-1]]
    assert sizes == [len(first), len(second), len(first)]


def test_ctrl_c_stops_the_answer_and_not_the_chat(fake: Fake, model: str) -> None:
    files = fake(repeat=1000, token_s=0.02)
    with subprocess.Popen(
        [sys.executable, "-m", "colibri", "chat", model, "--ctx", "64"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=environment(files),
    ) as chat:
        assert chat.stdin is not None
        assert chat.stdout is not None
        chat.stdin.write("hi\n")
        chat.stdin.flush()
        assert chat.stdout.read(5) == "Hello"
        chat.send_signal(signal.SIGINT)
        out, err = chat.communicate("/quit\n", timeout=15)
        assert (chat.returncode, err) == (0, "")
        assert out.endswith("\n")
    assert [line.split()[0] for line in files.received] == ["SUBMIT", "STOP", "EOF"]


def test_ctrl_c_at_the_prompt_asks_once_more(fake: Fake, model: str) -> None:
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "colibri", "chat", model, "--ctx", "64"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(fake()),
    ) as chat:
        os.close(theirs)
        assert chat.stdout is not None
        seen = b""

        def expect(text: bytes) -> None:
            nonlocal seen
            assert chat.stdout is not None
            while len(seen) < len(text):
                ready, _, _ = select.select([chat.stdout], [], [], 10)
                if not ready:
                    chat.kill()
                    break
                seen += os.read(chat.stdout.fileno(), 1000)
            assert seen == text
            seen = b""

        def interrupt() -> None:
            # The prompt is written a moment before the line is waited for.
            time.sleep(0.3)
            chat.send_signal(signal.SIGINT)

        expect(b"> ")
        interrupt()
        expect(b"\n> ")
        os.write(ours, b"hi\n")
        expect(b"Hello there, friend.\n> ")
        interrupt()
        expect(b"\n> ")
        interrupt()
        out, err = chat.communicate(timeout=15)
    os.close(ours)
    assert (chat.returncode, out) == (0, b"\n")
    assert b"/help" in err.splitlines()[0]
    assert err.count(b"press Ctrl-C again or type /quit to leave\n") == 2


def test_chat_explains_itself_and_leaves(fake: Fake, model: str) -> None:
    done = colibri("chat", model, files=fake(), stdin="/help\n/exit\nnot read\n")
    assert (done.returncode, done.stdout) == (0, "")
    assert "/reset" in done.stderr
    assert "error" not in done.stderr


def test_a_hard_death_of_the_server_ends_the_engine(fake: Fake, model: str) -> None:
    files = fake()
    server = Serving(files, "serve", model)
    try:
        server.url()
        server.end(signal.SIGKILL)
        deadline = time.monotonic() + 10
        while "EOF" not in files.received:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        server.close()


@pytest.fixture
def serving(fake: Fake, model: str) -> Iterator[Callable[..., Serving]]:
    started: list[Serving] = []

    def start(*args: str, **scenario: Any) -> Serving:
        started.append(Serving(fake(**scenario), "serve", model, *args))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_answers_and_ends_on_a_signal(serving: Callable[..., Serving], number: int) -> None:
    server = serving("--model-id", "tiny-1", "--slots", "2")
    url = server.url()
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
    request = urllib.request.Request(f"{url}v1/chat/completions", body)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=10) as reply:
        answer = json.load(reply)
    assert answer["model"] == "tiny-1"
    assert answer["choices"][0]["message"]["content"] == "Hello there, friend."
    assert server.end(number) == 0
    assert not any("Traceback" in line for line in server.lines)


def test_web_opens_the_page_once_it_is_served(
    fake: Fake, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(
        f'#!/bin/sh\necho "$1" > {opened}.part && mv {opened}.part {opened}\n', encoding="utf-8"
    )
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    server = Serving(fake(), "web", model)
    try:
        url = server.url()
        deadline = time.monotonic() + 10
        while not opened.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert opened.read_text(encoding="utf-8").strip() == url
        assert b"<h1>" in server.get("") or b"<div" in server.get("")
    finally:
        server.close()


def test_serve_ends_quickly_while_it_loads(serving: Callable[..., Serving]) -> None:
    server = serving(load_s=60.0, stderr=["getting there"])
    deadline = time.monotonic() + 10
    while "getting there" not in server.lines:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    started = time.monotonic()
    assert server.end(signal.SIGINT) == 0
    assert time.monotonic() - started < 5


def test_a_second_signal_does_not_wait_for_answers(serving: Callable[..., Serving]) -> None:
    server = serving(repeat=1000, token_s=1.0)
    port = int(server.url().rstrip("/").rpartition(":")[2])
    body = b'{"prompt": "x"}'
    with socket.create_connection(("127.0.0.1", port)) as client:
        head = "POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n"
        client.sendall(head.encode() + body)
        deadline = time.monotonic() + 10
        while json.loads(server.get("health"))["in_flight"] == 0:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        started = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert server.process.poll() is None
        assert server.end(signal.SIGINT) == 0
        assert time.monotonic() - started < 5
        assert b"502" in client.recv(1000)


def test_serve_reports_an_engine_that_does_not_start(serving: Callable[..., Serving]) -> None:
    server = serving(stderr=["error: no shard 2 of 3", "hint: fetch it"], exit_before_ready=1)
    assert server.process.wait(15) == 1
    server.end(signal.SIGTERM)
    assert server.lines == ["error: no shard 2 of 3", "hint: fetch it"]
