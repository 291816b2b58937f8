"""The legacy protocol, driven as an old client drives it, and compared with mux."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from colibri import _core
from colibri.find_engine import find_engine
from old_client import MODEL, OldClient

STAT4 = re.compile(rb"STAT \d+ \d+\.\d\d \d+\.\d \d+\.\d\d")
STAT6 = re.compile(rb"STAT (\d+) (\d+\.\d\d) \d+\.\d \d+\.\d\d (\d+) ([01])")
IDLE4 = re.compile(rb"STAT 0 0\.00 0\.0 \d+\.\d\d")
REFUSED = re.compile(rb"STAT 0 0\.00 0\.0 \d+\.\d\d 0 0")
TEMPLATE = (MODEL / "chat_template.jinja").read_text(encoding="utf-8")
SPECIAL = re.compile(rb"<\|\w+\|>|\[\w*MASK\]|<sop>|<eop>")
Start = Callable[..., OldClient]


def change(file: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    values = json.loads(file.read_text(encoding="utf-8"))
    edit(values)
    file.write_text(json.dumps(values), encoding="utf-8")


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, if nothing that it says were to end an answer."""
    folder = tmp_path_factory.mktemp("model") / "endless"
    shutil.copytree(MODEL, folder)
    for name in ("config.json", "generation_config.json"):
        change(folder / name, lambda values: values.pop("eos_token_id"))
    change(
        folder / "tokenizer.json",
        lambda values: [token.update(special=False) for token in values["added_tokens"]],
    )
    return folder


@pytest.fixture
def start(tmp_path: Path, endless: Path) -> Iterator[Start]:
    """Starts an engine as an old host does and reads its handshake."""
    clients: list[OldClient] = []

    def start(*args: str, model: Path = endless, **env: str) -> OldClient:
        folder = tmp_path / str(len(clients))
        folder.mkdir()
        defaults = {"SERVE": "1", "COLI_TEMP": "0", "NGEN": "12"}
        clients.append(OldClient(folder, *args, model=model, env=defaults | env))
        clients[-1].handshake()
        return clients[-1]

    yield start
    for client in clients:
        client.__exit__()


def mux(prompts: list[bytes], fields: str) -> list[bytes]:
    """What mux answers to up to 16 prompts where no token ends it; seeds are their numbers."""
    frames = b"".join(
        b"SUBMIT %d %d %d %s seed=%d ignore_eos=1\n%s\n"
        % (number + 1, number, len(prompt), fields.encode(), number, prompt)
        for number, prompt in enumerate(prompts)
    )
    command = [*find_engine(), "--mux", str(MODEL), "--slots", "16"]
    done = subprocess.run(command, input=frames, capture_output=True, check=True, timeout=120)
    texts = [b""] * len(prompts)
    ended = 0
    for kind, values in _core.RecordReader().feed(done.stdout):
        assert kind != "ERROR", values
        ended += kind == "DONE"
        if kind == "DATA":
            texts[values["id"] - 1] += values["data"]
    assert ended == len(prompts)
    return texts


def chat(*said: str) -> bytes:
    """The prompt of a conversation; the user begins."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]
    context = {"messages": messages, "add_generation_prompt": True, "enable_thinking": False}
    return _core.ChatTemplate(TEMPLATE).render(json.dumps(context)).encode()


def fields(stat: bytes) -> tuple[int, float, int, int]:
    found = STAT6.fullmatch(stat)
    assert found, stat
    emitted, speed, prompt_tokens, limited = found.groups()
    return int(emitted), float(speed), int(prompt_tokens), int(limited)


# --- start ---


def test_the_handshake_is_three_lines(tmp_path: Path) -> None:
    with OldClient(tmp_path) as client:
        before, stat, tiers = client.handshake()
        assert before == b""
        assert IDLE4.fullmatch(stat)
        assert re.fullmatch(rb"TIERS 0 \d+ \d+ 0\.00 \d+\.\d\d", tiers)
        # One line more would now be taken for text of the first answer.
        text, stat = client.ask(b"")
        assert text == b""
        assert IDLE4.fullmatch(stat)


@pytest.mark.parametrize(
    ("args", "env", "third"),
    [
        ([], {"SERVE": ""}, b"TIERS"),
        ([], {"SERVE": "1", "SERVE_BATCH": "0"}, b"TIERS"),
        ([], {"SERVE": "1", "SERVE_BATCH": "1"}, b"HWINFO"),
        ([], {}, b"HWINFO"),
        (["--legacy"], {"SERVE_BATCH": "1"}, b"TIERS"),
        (["--mux"], {"SERVE": "1"}, b"HWINFO"),
    ],
)
def test_what_is_spoken(tmp_path: Path, args: list[str], env: dict[str, str], third: bytes) -> None:
    with OldClient(tmp_path, *args, env=env) as client:
        assert client.handshake()[2].split()[0] == third


def test_a_variable_that_is_set_to_nothing_is_not_set(tmp_path: Path) -> None:
    names = ["RAM_GB", "VRAM_GB", "CTX", "KV_SLOTS", "KVSAVE", "COLIBRI_THREADS", "COLIBRI_READS"]
    names += ["SERVE_BATCH", "COLIBRI_PREFILL_CHUNK", "COLI_MODEL_DIRS", "NGEN", "SEED"]
    with OldClient(tmp_path, env={"SERVE": "", **dict.fromkeys(names, "")}) as client:
        assert client.handshake()[2].split()[0] == b"TIERS"


@pytest.mark.parametrize(
    ("args", "env", "words"),
    [
        (["--legacy", "--mux", str(MODEL)], {}, "cannot be used with"),
        (["--model", str(MODEL), str(MODEL)], {}, "given twice"),
        (["--legacy"], {"COLI_MODEL": ""}, "no model folder"),
        (["--legacy", str(MODEL)], {"NGEN": "0"}, "NGEN (--ngen)"),
        (["--legacy", str(MODEL)], {"COLI_TEMP": "3"}, "COLI_TEMP (--temperature)"),
        (["--legacy", str(MODEL)], {"NUCLEUS": "0"}, "NUCLEUS (--top-p)"),
        ([str(MODEL)], {"KV_SLOTS": "x"}, "environment variable KV_SLOTS"),
    ],
)
def test_command_lines_that_cannot_be_used(
    args: list[str], env: dict[str, str], words: str
) -> None:
    done = subprocess.run(
        [*find_engine(), *args], input=b"", capture_output=True, env=env, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"error: ")
    assert words in done.stderr.decode()


def test_settings_of_legacy_do_not_stop_mux() -> None:
    env = {"SEED": "today", "NGEN": "", "COLI_TEMP": "hot", "NUCLEUS": "-"}
    done = subprocess.run(
        [*find_engine(), "--mux", str(MODEL)], input=b"", capture_output=True, env=env, timeout=60
    )
    assert done.returncode == 0
    assert done.stdout.startswith(b"\x01\x01READY\x01\x01\n")


def test_a_model_by_position_goes_before_the_environment(tmp_path: Path) -> None:
    with OldClient(tmp_path, env={"SERVE": "1", "COLI_MODEL": "/nonexistent"}) as client:
        client.handshake()


# --- text lines ---


def test_text_is_asked_by_the_template_and_the_conversation_stays(start: Start) -> None:
    client = start()
    first, stat = client.ask(b"hello there")
    assert first.endswith(b"\n")
    emitted, _, prompt_tokens, limited = fields(stat)
    assert (emitted, limited) == (12, 1)
    second, stat = client.ask("and ünlike?\r".encode())
    assert fields(stat)[2] > prompt_tokens
    said = first[:-1].decode(errors="replace")
    wanted = mux([chat("hello there"), chat("hello there", said, "and ünlike?")], "12 0 1")
    assert [first[:-1], second[:-1]] == wanted


def test_more_goes_on_where_the_limit_cut(start: Start) -> None:
    cut = start()
    whole = start(NGEN="24")
    text, _ = cut.ask(b"hello")
    more, stat = cut.ask(b"\x02MORE")
    assert more.endswith(b"\n")
    assert STAT4.fullmatch(stat)
    assert stat.split()[1] == b"12"
    assert whole.ask(b"hello")[0][:-1] == text[:-1] + more[:-1]
    # What was added belongs to the conversation.
    then = cut.ask(b"next")[0][:-1]
    assert whole.ask(b"next")[0].startswith(then)


def test_more_draws_what_one_long_answer_draws(start: Start) -> None:
    sampled = {"COLI_TEMP": "1.5", "NUCLEUS": "0.9", "SEED": "11"}
    cut, whole = start(**sampled), start(NGEN="24", **sampled)
    text = cut.ask(b"hello")[0][:-1] + cut.ask(b"\x02MORE")[0][:-1]
    assert text == whole.ask(b"hello")[0][:-1]


def test_more_of_nothing_is_nothing(start: Start) -> None:
    client = start()
    for line in (b"\x02MORE", b"", b"\x02MORE\r"):
        text, stat = client.ask(line)
        assert text == b""
        assert IDLE4.fullmatch(stat)


def test_reset_forgets(start: Start) -> None:
    client = start()
    first = client.ask(b"hello")
    client.ask(b"more of it")
    text, stat = client.ask(b"\x02RESET\r")
    assert text == b""
    assert IDLE4.fullmatch(stat)
    assert client.ask(b"\x02MORE")[0] == b""
    again = client.ask(b"hello")
    assert again[0] == first[0]
    assert fields(again[1])[2] == fields(first[1])[2]


def test_drawing_again_gives_something_else_unless_the_seed_is_given(start: Start) -> None:
    def answers(**env: str) -> list[bytes]:
        client = start(COLI_TEMP="2", NUCLEUS="1", **env)
        asked = [client.ask(line)[0] for line in (b"hello", b"\x02RESET", b"hello")]
        return [asked[0], asked[2]]

    seeded = answers(SEED="7")
    assert seeded == answers(SEED="7")
    assert seeded[0] != seeded[1]
    assert answers() != answers()


def test_odd_bytes_in_a_line(start: Start) -> None:
    client = start()
    invalid, _ = client.ask(b"a\xff\xc3")
    client.ask(b"\x02RESET")
    assert client.ask("a\ufffd\ufffd".encode())[0] == invalid
    text, stat = client.ask(b"a\0b")
    assert text == b""
    assert REFUSED.fullmatch(stat)
    assert "NUL" in client.stderr


def test_other_commands_are_refused(start: Start) -> None:
    client = start()
    for line in (b"\x02", b"\x02FOO", b"\x02RESET now", b"\x02reset"):
        text, stat = client.ask(line)
        assert text == b""
        assert IDLE4.fullmatch(stat)
    assert client.stderr.count("error: request: unknown command") == 4


def test_a_line_without_bound_is_refused_and_the_next_one_heard(start: Start) -> None:
    client = start()
    text, stat = client.ask(b"x" * (20 << 20))
    assert text == b""
    assert REFUSED.fullmatch(stat)
    assert fields(client.ask(b"hello")[1])[0] == 12
    assert "too long" in client.stderr


# --- exact prompts ---


def test_prompts_are_exact_and_each_slot_has_its_own(start: Start) -> None:
    client = start(KV_SLOTS="2")
    first, second = b"def parse(self, args):\n    return", b"\x02RESET\n\x02MORE\n\x01\xff\n"
    wanted = mux([first, second], "6 0 1")
    for _ in range(2):
        for payload, slot, text in ((first, "", wanted[0]), (second, " 1", wanted[1])):
            answer, stat = client.prompt(payload, f"6 0 1{slot}")
            assert answer == text.replace(b"\x01", b"")
            assert fields(stat)[0] == 6
            assert fields(stat)[3] == 1
    assert client.buffer == b""


def test_the_limit_of_the_engine_holds_for_prompts_too(start: Start) -> None:
    client = start()
    answer, stat = client.prompt(b"abc", "1000 0 1")
    assert (fields(stat)[0], fields(stat)[3]) == (12, 1)
    more, _ = client.ask(b"\x02MORE")
    assert [answer + more[:-1]] == mux([b"abc"], "24 0 1")


def test_a_prompt_takes_the_place_of_the_conversation_of_its_slot(start: Start) -> None:
    client = start("--slots", "2")
    first = client.ask(b"hello")
    client.prompt(b"abc", "4 0 1 1")
    # RESET means slot 1 now, so the conversation is still there.
    client.ask(b"\x02RESET")
    assert fields(client.ask(b"hello")[1])[2] > fields(first[1])[2]
    client.prompt(b"abc", "4 0 1 0")
    assert client.ask(b"hello")[0] == first[0]


@pytest.mark.parametrize(
    "wrong", ["0 0 1", "4 3 1", "4 nan 1", "4 0 0", "4 0 1 2", "4 0 1 -1", "4 0", ""]
)
def test_a_refused_prompt_is_consumed(start: Start, wrong: str) -> None:
    client = start("--slots", "2")
    client.ask(b"hello")
    text, stat = client.prompt(b"\x02RESET\nhow are you\n\x02FOO\n", wrong)
    assert text == b""
    assert REFUSED.fullmatch(stat)
    # No line of it was taken for one, and the answer before it is still the one to continue.
    assert len(client.ask(b"\x02MORE")[0]) > 1
    assert client.buffer == b""
    assert client.stderr.count("error: ") == 1


@pytest.mark.parametrize("payload", [b"", b"a\0b"])
def test_prompts_that_hold_nothing_or_nul(start: Start, payload: bytes) -> None:
    client = start()
    text, stat = client.prompt(payload, "4 0 1")
    assert text == b""
    assert REFUSED.fullmatch(stat)


@pytest.mark.parametrize(
    "lost",
    [
        b"\x02PROMPT\n\x02RESET\n",
        b"\x02PROMPT x 4 0 1\n\x02RESET\n",
        b"\x02PROMPT 3 4 0 1\nabc\x02RESET\n",
        b"\x02PROMPT 9 4 0 1\nabc\n",
    ],
    ids=["no count", "no number", "count too small", "end of input"],
)
def test_a_prompt_whose_end_is_unknown_ends_the_session(start: Start, lost: bytes) -> None:
    client = start()
    client.send(lost)
    client.end_input()
    assert client.exit_code() == 3
    assert client.buffer == b""
    assert "error: frame boundary lost: " in client.stderr


# --- what ends an answer, and what is in it ---


def test_answers_are_those_of_mux_up_to_any_mark_of_a_turn(start: Start) -> None:
    prompts = [b"word %d" % number for number in range(16)]
    client = start(model=MODEL, SEED="0", NGEN="300")
    said = [client.prompt(prompt, "300 2 1") for prompt in prompts]
    drawn = mux(prompts, "300 2 1")
    ended = 0
    for (text, stat), whole in zip(said, drawn, strict=True):
        before, marker, _ = cut(whole)
        assert text == before.replace(b"\x01", b"")
        assert fields(stat)[3] == (marker == b"")
        ended += marker not in (b"", b"<|endoftext|>", b"<|user|>", b"<|observation|>")
    whole = b"".join(drawn)
    # What the model's own end tokens do not include was drawn, and so was the reserved byte.
    assert ended > 3
    assert b"\x01" in b"".join(before for before, _, _ in map(cut, drawn))
    assert b"<think>" in b"".join(text for text, _ in said)


def cut(text: bytes) -> tuple[bytes, bytes, bytes]:
    found = SPECIAL.search(text)
    if found is None:
        return text, b"", b""
    return text[: found.start()], found.group(), text[found.end() :]


def test_speed_counts_the_prompt_too(start: Start) -> None:
    client = start()
    started = time.monotonic()
    _, stat = client.prompt(b"word " * 600, "2 0 1")
    wall = time.monotonic() - started
    emitted, speed, prompt_tokens, _ = fields(stat)
    assert emitted == 2
    assert prompt_tokens > 1000
    assert 0.3 * wall < emitted / speed <= wall + 0.01


# --- limits, signals, the end ---


def test_a_conversation_that_does_not_fit_is_told_and_unharmed(start: Start) -> None:
    client, other = start("--ctx", "64", NGEN="4"), start("--ctx", "64", NGEN="4")
    first = client.ask(b"hello")
    text, stat = client.ask(b"word " * 100)
    assert text == b""
    assert REFUSED.fullmatch(stat)
    assert "at most 63" in client.stderr
    text, stat = client.prompt(b"word " * 100, "4 0 1")
    assert REFUSED.fullmatch(stat)
    assert first[0] == other.ask(b"hello")[0]
    assert client.ask(b"next")[0] == other.ask(b"next")[0]


def test_the_context_ends_an_answer_and_more_of_it(start: Start) -> None:
    client = start("--ctx", "32", NGEN="100")
    _, stat = client.prompt(b"abc", "100 0 1")
    emitted, _, prompt_tokens, limited = fields(stat)
    assert (emitted + prompt_tokens, limited) == (32, 1)
    text, stat = client.ask(b"\x02MORE")
    assert text == b""
    assert IDLE4.fullmatch(stat)


@pytest.mark.parametrize("last", [b"hello", b"hello\n", b"\x02PROMPT 3 12 0 1\nabc"])
def test_the_end_of_input_waits_for_the_answer(start: Start, last: bytes) -> None:
    client = start()
    client.send(last)
    client.end_input()
    text, stat = client.answer()
    assert text
    assert fields(stat)[0] == 12
    assert client.exit_code() == 0
    assert client.buffer == b""


def test_termination_ends_it_with_code_0(start: Start) -> None:
    client = start()
    client.process.send_signal(signal.SIGTERM)
    assert client.exit_code() == 0
    assert client.buffer == b""


def begun(start: Start) -> OldClient:
    """A client that is in the middle of a long answer."""
    # Slow enough that it lasts for seconds.
    client = start(NGEN="4000", COLIBRI_ISA="scalar")
    client.send(b"\x02PROMPT 3 4000 0 1\nabc\n")
    client.buffer += client.read_some()
    return client


def test_termination_in_mid_answer_ends_the_answer_first(start: Start) -> None:
    client = begun(start)
    client.send(b"not answered\n")
    client.process.send_signal(signal.SIGTERM)
    _, stat = client.answer()
    assert fields(stat)[0] < 4000
    assert client.exit_code() == 0
    assert client.buffer == b""


def test_an_interrupt_ends_the_answer_and_more_continues_it(start: Start) -> None:
    client = begun(start)
    client.process.send_signal(signal.SIGINT)
    text, stat = client.answer()
    emitted, _, _, limited = fields(stat)
    assert emitted < 4000
    assert limited == 0
    client.send(b"\x02MORE\n")
    client.buffer += client.read_some()
    client.process.send_signal(signal.SIGINT)
    more, stat = client.answer()
    assert STAT4.fullmatch(stat)
    emitted += int(stat.split()[1])
    [whole] = mux([b"abc"], f"{emitted} 0 1")
    assert text + more[:-1] == whole.replace(b"\x01", b"")


def test_interrupts_without_an_answer_do_nothing(start: Start) -> None:
    client = start()
    for _ in range(3):
        client.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert fields(client.ask(b"hello")[1])[0] == 12


def test_a_client_that_leaves_ends_the_engine(start: Start) -> None:
    client = begun(start)
    assert client.process.stdout is not None
    client.process.stdout.close()
    assert client.process.wait(30) == 1
    assert "standard output" in client.stderr


# --- models ---


def test_without_a_template_only_exact_prompts_are_answered(start: Start, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    (model / "chat_template.jinja").unlink()
    (model / "tokenizer_config.json").unlink()
    client = start(model=model)
    assert "notice: this model has no chat template" in client.stderr
    text, stat = client.ask(b"hello")
    assert text == b""
    assert REFUSED.fullmatch(stat)
    assert fields(client.prompt(b"abc", "4 0 1")[1])[0] == 4


def test_a_template_that_refuses_a_message_refuses_the_line(start: Start, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    (model / "chat_template.jinja").write_text(
        "{% if 'secret' in messages[-1].content %}{{ raise_exception('not that') }}{% endif %}"
        + TEMPLATE,
        encoding="utf-8",
    )
    client = start(model=model)
    assert REFUSED.fullmatch(client.ask(b"a secret")[1])
    assert "not that" in client.stderr
    assert fields(client.ask(b"hello")[1])[0] == 12


def test_text_lines_are_drawn_as_the_model_suggests(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    (model / "generation_config.json").write_text('{"do_sample": false}', encoding="utf-8")
    with OldClient(tmp_path, "--ngen", "8", "--legacy", model=model, env={}) as client:
        client.handshake()
        [wanted] = mux([chat("hello")], "8 0 1")
        assert client.ask(b"hello")[0] == wanted.replace(b"\x01", b"") + b"\n"
