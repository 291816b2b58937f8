"""The package as users have it: real processes, the real engine, the demo model.

``COLI_MODEL`` and ``COLIBRI_ENGINE`` choose another model or engine build.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from colibri.models import read_model, resolve_model
from processes import Serving, assert_refused, colibri

CTX = 512
USER: Any = [{"role": "user", "content": "Tell me a story about a fox."}]


@pytest.fixture(scope="session")
def model() -> Path:
    return resolve_model(None)


@pytest.fixture(scope="session", autouse=True)
def no_saved_state() -> Iterator[None]:
    """Tests must not see each other's conversations, nor write beside the model."""
    patch = pytest.MonkeyPatch()
    patch.setenv("KVSAVE", "0")
    yield
    patch.undo()


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Serving]:
    serving = Serving(None, "serve", str(model), "--ctx", str(CTX), "--slots", "4")
    yield serving
    code = serving.end(signal.SIGTERM)
    serving.close()
    assert code == 0
    assert not [line for line in serving.lines if "Traceback" in line]


@pytest.fixture(scope="module")
def client(server: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url()}v1", api_key="x", max_retries=0) as found:
        yield found


def get(server: Serving, path: str) -> Any:
    return json.loads(server.get(path))


def complete(client: openai.OpenAI, prompt: str, **fields: Any) -> Any:
    fields = {"max_tokens": 24, "temperature": 0, **fields}
    return client.completions.create(model="default", prompt=prompt, **fields)


def test_a_chat_streamed_and_whole_is_the_same(client: openai.OpenAI) -> None:
    fields: Any = {"model": "default", "messages": USER, "max_tokens": 60, "temperature": 0}
    whole = client.chat.completions.create(**fields)
    said = whole.choices[0].message.content
    assert said
    stream = client.chat.completions.create(
        **fields,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers={"X-Colibri-Telemetry": "topk"},
    )
    chunks = list(stream)
    assert "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices) == said
    usage, again = whole.usage, chunks[-1].usage
    assert usage is not None
    assert again is not None
    assert usage.prompt_tokens == again.prompt_tokens > 5
    assert usage.completion_tokens == again.completion_tokens > 0
    figures: Any = whole.model_extra
    stats, perf = figures["colibri"]["stats"], figures["colibri"]["perf"]
    assert stats["completion_tokens"] == usage.completion_tokens
    assert stats["ttft_ms"] > 0
    assert perf["wall_s"] > 0
    assert figures["colibri"]["topk"] is None
    last: Any = chunks[-1].model_extra
    assert len(last["colibri"]["topk"]) == usage.completion_tokens
    best = last["colibri"]["topk"][0]
    assert [b["logprob"] for b in best] == sorted((b["logprob"] for b in best), reverse=True)


def test_a_prompt_seen_before_is_not_read_again_and_the_answer_is_the_same(
    client: openai.OpenAI,
) -> None:
    prompt = "One day a small bird sat in a tall tree and looked at the wide blue sky."
    cold = complete(client, prompt)
    warm = complete(client, prompt)
    assert warm.choices[0].text == cold.choices[0].text
    assert cold.usage.prompt_tokens_details.cached_tokens < warm.usage.prompt_tokens // 2
    assert warm.usage.prompt_tokens_details.cached_tokens >= warm.usage.prompt_tokens - 1


def test_requests_side_by_side_say_what_they_say_alone(client: openai.OpenAI) -> None:
    prompts = [f"Once upon a time there was a {animal}" for animal in ("fox", "cat", "owl", "dog")]
    alone = [complete(client, prompt).choices[0].text for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda p: complete(client, p).choices[0].text, prompts))
    assert together == alone


def test_a_seed_repeats_the_draw(client: openai.OpenAI) -> None:
    def draw(seed: int) -> str:
        text: str = complete(client, "The", temperature=1.5, top_p=1, seed=seed).choices[0].text
        return text

    assert draw(7) == draw(7)
    assert len({draw(seed) for seed in range(4)}) > 1


def test_stop_strings_cut_what_comes_without_them(client: openai.OpenAI) -> None:
    full = complete(client, "Once upon a time").choices[0].text
    middle = full[len(full) // 2 : len(full) // 2 + 3]
    cut = complete(client, "Once upon a time", stop=middle).choices[0]
    assert cut.text == full[: full.index(middle)]
    assert cut.finish_reason == "stop"


def test_the_context_is_a_limit_with_numbers(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, "word " * 3000)
    assert caught.value.code == "context_length_exceeded"
    assert str(CTX - 1) in str(caught.value)
    [model] = client.models.list().data
    assert model.model_extra is not None
    assert model.model_extra["context_length"] == CTX


def test_the_map_follows_what_was_routed(server: Serving, client: openai.OpenAI) -> None:
    before = get(server, "experts")
    complete(client, "Something else entirely: seven green boats")
    after = get(server, "experts")
    assert after["seq"] > before["seq"]
    assert len(bytes.fromhex(after["map"])) == after["rows"] * after["cols"] > 0
    assert len(bytes.fromhex(after["hits"])) == -(-after["rows"] * after["cols"] // 8)

    def heat(body: Any) -> int:
        return sum(cell & 63 for cell in bytes.fromhex(body["map"]))

    assert heat(after) >= heat(before)
    assert heat(after) > 0
    assert len(after["entropy"]) == after["rows"]
    state = get(server, "api/state")
    assert state["geometry"]["family"]
    assert str(resolve_model(None).parent) not in json.dumps(state)
    assert (state["rows"], len(state["layers"])) == (after["rows"], after["rows"])
    tiers = get(server, "health")["tiers"]
    assert tiers["vram"] + tiers["ram"] + tiers["disk"] == after["rows"] * after["cols"]
    profile = get(server, "profile")
    [*_, turn] = profile["turns"]
    assert turn["completion_tokens"] > 0
    # Every use of an expert is served in one of three ways, and the share of hits says the same.
    hits = turn["uses_ahead"] + turn["uses_cached"]
    everything = hits + turn["uses_missed"]
    assert everything % len(state["layers"]) == 0
    assert turn["cache_hit_percent"] == pytest.approx(100 * hits / everything, abs=0.051)
    assert (turn["uses_missed"] > 0) == (turn["bytes_read"] > 0)
    assert turn["limit"]["kind"] in {"disk", "computing", "neither"}
    memory = profile["memory"]
    assert memory["experts_gb"] <= memory["experts_most_gb"]
    assert memory["dense_gb"] > 0 < memory["conversations_most_gb"]


def test_a_client_that_leaves_frees_its_slot(server: Serving, client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model="default",
        prompt="Once",
        max_tokens=CTX,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + 2
    while get(server, "health")["in_flight"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_killed_engine_is_told_and_replaced(model: Path) -> None:
    serving = Serving(None, "serve", str(model), "--ctx", str(CTX))
    try:
        with openai.OpenAI(base_url=f"{serving.url()}v1", api_key="x", max_retries=0) as client:
            before = complete(client, "Once").choices[0].text
            children = Path(f"/proc/{serving.process.pid}/task/{serving.process.pid}/children")
            [engine] = children.read_text(encoding="utf-8").split()
            os.kill(int(engine), signal.SIGKILL)
            deadline = time.monotonic() + 20
            after, reasons = None, []
            while after is None and time.monotonic() < deadline:
                try:
                    after = complete(client, "Once").choices[0].text
                except openai.InternalServerError as error:
                    reasons.append(str(error))
                    time.sleep(0.1)
            assert after == before
            assert all("engine" in reason for reason in reasons)
    finally:
        serving.close()


def test_a_killed_server_leaves_no_engine_behind(model: Path) -> None:
    serving = Serving(None, "serve", str(model), "--ctx", str(CTX))
    try:
        serving.url()
        children = Path(f"/proc/{serving.process.pid}/task/{serving.process.pid}/children")
        engine = Path("/proc", children.read_text(encoding="utf-8").strip())
        assert engine.exists()
        serving.end(signal.SIGKILL)
        deadline = time.monotonic() + 10
        # Who inherits the ended process may leave it unread for a while.
        while engine.exists() and " Z " not in (engine / "stat").read_text(encoding="utf-8"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        serving.close()


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return colibri("run", "--ctx", "256", "--max-tokens", "24", *args)


def test_run_is_repeatable_without_temperature() -> None:
    first, second = (run("Once upon a time", "--temperature", "0") for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert len(first.stdout.strip()) > 5


def test_run_takes_a_seed_and_any_text() -> None:
    first, second = (run("Größe 😀 \\n", "--seed", "3", "--temperature", "1") for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout


def test_chat_answers_in_the_terminal() -> None:
    done = colibri("chat", "--ctx", "256", "--max-tokens", "16", stdin="hello\n/quit\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_info_describes_the_model() -> None:
    done = colibri("info", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    told = colibri("info").stdout
    assert "chat template: yes" in told
    assert "total size: " in told
    assert re.search(r"experts: \d+ in each of \d+ sparse layers", told)


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "no_such_architecture"}', encoding="utf-8")


def break_weights(folder: Path) -> None:
    weights = next(folder.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:1000])


def remove_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize("damage", [break_config, break_weights, remove_tokenizer])
def test_a_damaged_model_is_one_error(
    model: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(model, folder, copy_function=shutil.copy)
    for path in [folder, *folder.iterdir()]:
        path.chmod(0o755)
    damage(folder)
    done = colibri("run", "--model", str(folder), "hi")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert sum(line.startswith("error: ") for line in lines) == 1
    assert "Traceback" not in done.stderr
    assert "panicked" not in done.stderr


def test_a_budget_that_cannot_hold_the_model_is_refused(model: Path) -> None:
    done = colibri("run", "--model", str(model), "hi", "--ram", "0.000001")
    assert_refused(done, 1, "budget")


def test_the_model_class_agrees_with_the_command_line(model: Path) -> None:
    code = f"""
import numpy as np
from colibri import Model
model = Model({str(model)!r}, ctx=256, threads=1)
ids = model.encode("Once upon a time")
assert model.decode(ids) == "Once upon a time"
logits = model.logits(ids)
assert logits.dtype == np.float32 and logits.shape[0] == len(ids), logits.shape
experts, weights = model.routing(ids)
assert experts.shape == weights.shape and experts.shape[0] == len(ids)
tokens = list(model.generate("Once upon a time", max_tokens=24, temperature=0))
assert tokens[0].id == int(logits[-1].argmax())
print("".join(token.text for token in tokens))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert done.stdout == run("Once upon a time", "--temperature", "0").stdout


async def test_the_engine_survives_clients_that_come_and_go(
    server: Serving, client: openai.OpenAI
) -> None:
    prompt = "A cat and a mouse"
    expected = complete(client, prompt).choices[0].text
    url = f"{server.url()}v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=5) as other:

        async def leave(number: int) -> None:
            stream = await other.completions.create(
                model="default", prompt=f"{number} {prompt}", max_tokens=60, stream=True
            )
            async for _ in stream:
                break
            await stream.close()

        await asyncio.gather(*(leave(number) for number in range(40)))
    assert complete(client, prompt).choices[0].text == expected


def test_the_model_of_the_package_has_what_chat_needs(model: Path) -> None:
    assert read_model(model).template is not None
