"""Both generating endpoints over a scripted engine."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from conftest import Server, Stream, chat_body, until

Serve = Callable[..., Server]
SAID = "Hello there, friend."


async def chunks(stream: Stream) -> list[dict[str, Any]]:
    """Every chunk of a stream that ends as it should."""
    await stream.read_head()
    assert stream.status == 200
    data = [item async for item in stream.data()]
    assert data[-1] == "[DONE]"
    await stream.close()
    return [json.loads(item) for item in data[:-1]]


def content(of: list[dict[str, Any]], key: str = "content") -> str:
    return "".join(
        choice["delta"].get(key, "") for chunk in of for choice in chunk.get("choices", [])
    )


async def test_an_answer_in_one_piece(serve: Serve) -> None:
    async with serve({"prefill": [[2, 3]], "topk": True, "repins": 1}) as server:
        answer = await server.chat("hi")
        assert answer.status == 200
        body = answer.json
        assert body["id"].startswith("chatcmpl-")
        assert body["object"] == "chat.completion"
        assert body["model"] == "fake"
        [choice] = body["choices"]
        assert choice["message"] == {"role": "assistant", "content": SAID, "refusal": None}
        assert choice["finish_reason"] == "stop"
        assert body["usage"]["completion_tokens"] == 5
        assert body["usage"]["total_tokens"] == 5 + body["usage"]["prompt_tokens"]
        assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
        colibri = body["colibri"]
        assert set(colibri) == {"stats", "perf", "topk", "entropy", "gpus", "repin"}
        assert colibri["stats"]["tokens_per_second"] == 12.5
        assert colibri["stats"]["cached_tokens"] == 2
        assert colibri["stats"]["ttft_ms"] >= 0
        assert colibri["perf"]["expert_wait_s"] == 0.05
        assert colibri["topk"] is None
        assert colibri["entropy"] == [1.5, 2.25]
        assert colibri["repin"] == [{"layer": 1, "expert": 3, "old_tier": 0, "gpu": -1}]
        assert answer.headers["x-request-id"].startswith("req_")
        [line] = server.files.received
        assert line.split()[3:] == ["23", "64", "0.7", "0.9"]


async def test_a_streamed_answer(serve: Serve) -> None:
    async with serve({"prefill": [[0, 3], [3, 3]]}) as server:
        stream = await server.chat_stream("hi", stream_options={"include_usage": True})
        got = await chunks(stream)
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.headers["cache-control"] == "no-cache"
        assert stream.headers["x-accel-buffering"] == "no"
        assert got[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert content(got) == SAID
        assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in got}) == 1
        assert all(chunk["object"] == "chat.completion.chunk" for chunk in got)
        reasons = [c["finish_reason"] for chunk in got for c in chunk["choices"]]
        assert [reason for reason in reasons if reason] == ["stop"]
        assert got[-2]["choices"][0] == {
            "index": 0,
            "delta": {},
            "logprobs": None,
            "finish_reason": "stop",
        }
        assert all(chunk["usage"] is None for chunk in got[:-1])
        assert got[-1]["choices"] == []
        assert got[-1]["usage"]["completion_tokens"] == 5
        assert got[-1]["colibri"]["stats"]["completion_tokens"] == 5
        empty = [
            c for chunk in got[1:] for c in chunk["choices"] if c["delta"].get("content") == ""
        ]
        assert empty == []


@pytest.mark.parametrize("stream", [False, True])
async def test_alternatives_come_when_asked_for(serve: Serve, stream: bool) -> None:
    async with serve({"topk": True}) as server:
        body = chat_body(stream=stream)
        headers = {"X-Colibri-Telemetry": "topk"}
        if stream:
            got = await server.open("POST", "/v1/chat/completions", body, headers)
            topk = (await chunks(got))[-1]["colibri"]["topk"]
        else:
            answer = await server.request("POST", "/v1/chat/completions", body, headers)
            topk = answer.json["colibri"]["topk"]
        assert topk[0][0] == {"text": "Hello", "bytes": [*b"Hello"], "logprob": -0.1}
        assert len(topk) == 5
        [line] = server.files.received
        assert line.split()[-1] == "topk=5"


async def test_telemetry_is_left_out_when_not_wanted(serve: Serve) -> None:
    async with serve() as server:
        off = {"X-Colibri-Telemetry": "off"}
        body = chat_body()
        answer = await server.request("POST", "/v1/chat/completions", body, off)
        assert "colibri" not in answer.json
        stream = await server.open("POST", "/v1/chat/completions", {**body, "stream": True}, off)
        assert all(chunk["choices"] for chunk in await chunks(stream))
        assert all("topk" not in line for line in server.files.received)
    async with serve(telemetry=False) as server:
        assert "colibri" not in (await server.chat()).json


@pytest.mark.parametrize("merged", [False, True])
async def test_tokens_after_a_stop_string_do_not_count(serve: Serve, merged: bool) -> None:
    # All of the answer is on its way before STOP can arrive; how much is taken at once varies.
    scenario = {"tokens": ["a", "b", "c", "d", "e"], "repeat": 10, "topk": True, "deaf": True}
    async with serve(scenario) as server:
        topk = {"X-Colibri-Telemetry": "topk"}
        body = chat_body(stop="cd")
        if merged:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("colibri.engine.QUEUE_TOKENS", 2)
                answer = await server.request("POST", "/v1/chat/completions", body, topk)
        else:
            answer = await server.request("POST", "/v1/chat/completions", body, topk)
            assert len(answer.json["colibri"]["topk"]) == 4
        assert answer.json["choices"][0]["message"]["content"] == "ab"
        assert answer.json["usage"]["completion_tokens"] == 4
        assert answer.json["colibri"]["stats"]["completion_tokens"] == 4
        profile = (await server.request("GET", "/profile")).json
        assert profile["turns"][-1]["completion_tokens"] == 4


async def test_a_raw_prompt_goes_to_the_engine_as_it_stands(serve: Serve) -> None:
    async with serve() as server:
        body = {"prompt": "Once upon a time", "max_tokens": 2, "temperature": 0, "top_p": 0.5}
        answer = await server.request("POST", "/v1/completions", body)
        assert answer.json["object"] == "text_completion"
        assert answer.json["choices"][0]["text"] == "Hello there"
        assert answer.json["choices"][0]["finish_reason"] == "length"
        assert server.files.received[0].split()[3:7] == ["16", "2", "0", "0.5"]
        stream = await server.open("POST", "/v1/completions", {**body, "stream": True})
        got = await chunks(stream)
        assert "".join(c["text"] for chunk in got for c in chunk["choices"]) == "Hello there"
        assert got[-2]["choices"][0]["finish_reason"] == "length"


async def test_max_tokens_limits_and_says_so(serve: Serve) -> None:
    async with serve() as server:
        answer = await server.chat(max_completion_tokens=3, max_tokens=5)
        assert answer.json["choices"][0]["finish_reason"] == "length"
        assert answer.json["usage"]["completion_tokens"] == 3


async def test_options_reach_the_engine_if_it_offers_them(serve: Serve) -> None:
    async with serve() as server:
        await server.chat(seed=42)
        assert "seed=42" in server.files.received[0].split()
        refused = await server.chat(top_k=5)
        assert (refused.status, refused.error["param"]) == (400, "top_k")
        assert server.files.count("SUBMIT") == 1


async def test_every_sampling_field_reaches_an_engine_that_offers_it(serve: Serve) -> None:
    names = "seed,top_k,min_p,topk,stop_ids,ignore_eos,presence,frequency,repetition,bias"
    scenario = {"caps": f"proto=1 ctx=64 slots=2 vocab=512 model=fake submit={names} eos=0"}
    fields = {
        "seed": 7,
        "top_k": 40,
        "min_p": 0.05,
        "presence_penalty": -0.5,
        "frequency_penalty": 2,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": -100, "6": 0.5},
        "ignore_eos": True,
    }
    async with serve(scenario) as server:
        assert (await server.chat(**fields)).status == 200
        completion = {"prompt": "hi", **fields}
        assert (await server.request("POST", "/v1/completions", completion)).status == 200
        for line in server.files.received:
            assert sorted(line.split()[7:]) == [
                "bias=5:-100,6:0.5",
                "frequency=2",
                "ignore_eos=1",
                "min_p=0.05",
                "presence=-0.5",
                "repetition=1.1",
                "seed=7",
                "top_k=40",
            ]
        too_long = {str(100_000 + i): 0.123456 for i in range(300)}
        assert (await server.chat(logit_bias=too_long)).status == 400
        assert server.files.count("SUBMIT") == 2


async def test_a_prompt_beyond_the_context_is_a_400_with_both_numbers(serve: Serve) -> None:
    async with serve({"limit": 10}) as server:
        for stream in (False, True):
            answer = await server.chat("word " * 30, stream=stream)
            assert answer.status == 400
            assert answer.error["code"] == "context_length_exceeded"
            assert "31 tokens" in answer.error["message"]
            assert "at most 10" in answer.error["message"]
            assert "=" not in answer.error["message"]
        assert server.service.admission.active == 0


STOP_TOKENS = ["one ", "DEF", "G", "HI", "J", " two", "K"]


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_strings_end_the_answer_and_the_turn(serve: Serve, stream: bool) -> None:
    async with serve({"tokens": STOP_TOKENS, "repeat": 5, "token_s": 0.01}) as server:
        if stream:
            got = await chunks(await server.chat_stream(stop=["never", "DEFGHIJ"]))
            shown, reason = content(got), got[-2]["choices"][0]["finish_reason"]
        else:
            answer = await server.chat(stop="DEFGHIJ")
            [choice] = answer.json["choices"]
            shown, reason = choice["message"]["content"], choice["finish_reason"]
        assert (shown, reason) == ("one ", "stop")
        assert server.files.count("STOP") == 1
        assert server.files.count("CANCEL") == 0
        assert server.service.admission.active == 0


async def test_role_markers_of_the_template_end_the_answer(serve: Serve) -> None:
    template = "<|user|>{{ messages[0].content }}<|assistant|>"
    tokens = ["ready", "<|us", "er|>", "more"]
    async with serve({"tokens": tokens}, model={"template": template}) as server:
        assert (await server.chat()).json["choices"][0]["message"]["content"] == "ready"
        assert content(await chunks(await server.chat_stream())) == "ready"
        answer = await server.request("POST", "/v1/completions", {"prompt": "x"})
        assert answer.json["choices"][0]["text"] == "ready"


async def test_characters_cut_into_bytes_arrive_whole(serve: Serve) -> None:
    said = "aé€😀" * 3
    tokens = [f"hex:{byte:02x}" for byte in said.encode()]
    async with serve({"tokens": tokens}) as server:
        got = await chunks(await server.chat_stream())
        assert content(got) == said
        assert (await server.chat()).json["choices"][0]["message"]["content"] == said
        answer = await server.chat(stop="😀")
        assert answer.json["choices"][0]["message"]["content"] == "aé€"


async def test_random_splits_give_the_same_text_in_both_modes(serve: Serve) -> None:
    chance = random.Random(5)
    said = "data: [DONE]\n\nDATA 1 2\r\n\x01\x01READY\x01\x01\n{}\\\"'</script> ünïcode 😀"
    prompts = {}
    for case in range(12):
        raw = said.encode()
        cuts = sorted(chance.sample(range(len(raw)), 10))
        pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
        prompts[f"case{case:02}"] = {"tokens": [f"hex:{piece.hex()}" for piece in pieces]}
    async with serve({"prompts": prompts}) as server:
        for name in prompts:
            assert content(await chunks(await server.chat_stream(name))) == said
            assert (await server.chat(name)).json["choices"][0]["message"]["content"] == said


async def test_thinking_is_kept_apart(serve: Serve) -> None:
    template = "{{ messages[0].content }}<think></think>"
    tokens = ["<th", "ink>\n", "hm", "m", "\n</thi", "nk>\n\n", "yes"]
    async with serve({"tokens": tokens}, model={"template": template}) as server:
        message = (await server.chat()).json["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("hmm", "yes")
        got = await chunks(await server.chat_stream())
        assert content(got, "reasoning_content") == "hmm"
        assert content(got) == "yes"


async def test_a_model_without_thinking_has_no_reasoning(serve: Serve) -> None:
    async with serve({"tokens": ["<think>", "x", "</think>", "y"]}) as server:
        message = (await server.chat()).json["choices"][0]["message"]
        assert message["content"] == "<think>x</think>y"
        assert "reasoning_content" not in message


async def test_silence_is_broken_by_comments(serve: Serve) -> None:
    scenario = {"prefill_s": 0.35, "prefill": [[1, 3]]}
    async with serve(scenario, service={"keepalive_s": 0.1}) as server:
        stream = await server.chat_stream()
        await stream.read_head()
        blocks = [block async for block in stream.blocks()]
        assert blocks.count(": keepalive") >= 2
        assert ": prefill 1/3" in blocks
        assert blocks[-1] == "data: [DONE]"
        await stream.close()


async def test_a_long_wait_in_the_queue_is_not_silent(serve: Serve) -> None:
    scenario = {"prompts": {"long": {"repeat": 100, "token_s": 0.01}}}
    async with serve(scenario, slots=1, service={"keepalive_s": 0.1}) as server:
        first = await server.chat_stream("long", max_tokens=50)
        await first.read_head()
        second = await server.chat_stream("short")
        await second.read_head()
        assert second.status == 200
        blocks = [block async for block in second.blocks()]
        assert ": queued" in blocks
        assert blocks[-1] == "data: [DONE]"
        await first.close()
        await second.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("scenario", [{"prefill_s": 5.0}, {"accept_s": 5.0}, {"token_s": 0.02}])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_client_that_leaves_is_cancelled_within_a_second(
    serve: Serve, stream: bool, scenario: dict[str, Any], path: str
) -> None:
    async with serve({"repeat": 1000, **scenario}) as server:
        body = {**chat_body(), "prompt": "hi", "stream": stream, "max_tokens": 60}
        client = await server.open("POST", path, body)
        await until(lambda: server.files.count("SUBMIT") == 1)
        if stream and "token_s" in scenario:
            await client.read_head()
        client.abort()
        await until(lambda: server.files.count("CANCEL") == 1, 1.0)
        await until(lambda: server.engine.in_flight == 0, 1.0)
        assert server.service.admission.active == 0


async def test_who_leaves_the_queue_never_reaches_the_engine(serve: Serve) -> None:
    scenario = {"prompts": {"long": {"repeat": 100, "token_s": 0.02}}}
    async with serve(scenario, slots=1) as server:
        running = await server.chat_stream("long")
        await running.read_head()
        abandoned = await server.open("POST", "/v1/chat/completions", chat_body("resend"))
        await until(lambda: server.service.admission.queued == 1)
        abandoned.abort()
        await until(lambda: server.service.admission.queued == 0, 1.0)
        again = asyncio.ensure_future(server.chat("resend"))
        await until(lambda: server.service.admission.queued == 1)
        running.abort()
        assert (await again).status == 200
        assert server.files.count("SUBMIT") == 2


async def test_a_full_queue_is_a_429_with_retry_after(serve: Serve) -> None:
    async with serve({"repeat": 100, "token_s": 0.02}, slots=1, max_queue=1) as server:
        running = await server.chat_stream()
        await running.read_head()
        waiting = await server.chat_stream()
        await until(lambda: server.service.admission.queued == 1)
        for stream in (False, True):
            answer = await server.chat(stream=stream)
            assert (answer.status, answer.error["code"]) == (429, "queue_full")
            assert answer.error["type"] == "rate_limit_error"
            assert int(answer.headers["retry-after"]) >= 1
        waiting.abort()
        running.abort()


async def test_an_error_within_a_stream_is_one_event_and_no_done(serve: Serve) -> None:
    async with serve({"error_after": 3}) as server:
        stream = await server.chat_stream()
        await stream.read_head()
        data = [json.loads(item) async for item in stream.data()]
        assert content(data) == "Hello there,"
        assert data[-1]["error"]["message"] == "the engine failed this request: disk read failed"
        assert sum("error" in item for item in data) == 1
        assert server.service.admission.active == 0
        await stream.close()
        answer = await server.chat()
        assert (answer.status, answer.error["code"]) == (500, "engine_error")


@pytest.mark.parametrize("stream", [False, True])
async def test_death_of_the_engine_has_a_cause_and_the_next_request_works(
    serve: Serve, stream: bool
) -> None:
    async with serve({"lives": [{"kill_after": 2, "token_s": 0.01}]}) as server:
        if stream:
            reply = await server.chat_stream()
            await reply.read_head()
            error = [json.loads(item) async for item in reply.data()][-1]["error"]
            await reply.close()
        else:
            answer = await server.chat()
            assert answer.status == 502
            error = answer.error
        assert error["code"] == "engine_died"
        assert "killed by signal 9 (SIGKILL): possibly out of memory" in error["message"]
        answer = await server.chat()
        assert answer.status == 503
        assert "retry-after" in answer.headers
        health = await server.request("GET", "/health")
        assert (health.status, health.json["state"]) == (503, "restarting")
        assert "signal 9" in health.json["engine"]["reason"]
        await until(lambda: server.engine.state.name == "ready")
        assert (await server.chat()).json["choices"][0]["message"]["content"] == SAID


async def test_before_the_model_is_loaded_requests_are_503(serve: Serve) -> None:
    scenario = {"load_s": 0.5, "stderr": ["progress experts 1 4"]}
    async with serve(scenario, ready=False) as server:
        await until(lambda: server.engine.state.name == "loading")
        answer = await server.chat()
        assert answer.status == 503
        assert "experts 25 %" in answer.error["message"]
        state = (await server.request("GET", "/api/state")).json
        assert (state["state"], state["stage"], state["done"], state["total"]) == (
            "loading",
            "experts",
            1,
            4,
        )
        await server.engine.wait_ready()
        assert (await server.chat()).status == 200


async def test_turns_keep_their_slot_and_run_side_by_side(serve: Serve) -> None:
    async with serve({"token_s": 0.01}, slots=2) as server:
        await asyncio.gather(*(server.chat(f"conversation {i}") for i in range(2)))
        first = {line.split()[2] for line in server.files.received}
        assert first == {"0", "1"}
        await server.chat("conversation 1")
        await server.chat("conversation 1")
        assert server.files.received[-1].split()[2] == server.files.received[-2].split()[2]


@pytest.mark.parametrize("name", ["fake", "default", "colibri", None])
async def test_names_for_the_one_model(serve: Serve, name: str | None) -> None:
    async with serve() as server:
        answer = await server.chat(model=name)
        assert answer.status == 200
        assert answer.json["model"] == "fake"


async def test_another_model_is_a_404_that_names_the_served_one(serve: Serve) -> None:
    async with serve() as server:
        answer = await server.chat(model="gpt-4o")
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")
        assert "'fake'" in answer.error["message"]


async def test_a_model_without_template_points_to_completions(serve: Serve) -> None:
    async with serve(model={"template": None}) as server:
        answer = await server.chat()
        assert (answer.status, answer.error["code"]) == (400, "no_chat_template")
        assert "/v1/completions" in answer.error["hint"]


async def test_what_a_template_refuses_is_a_400(serve: Serve) -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    async with serve(model={"template": template}) as server:
        answer = await server.chat()
        assert (answer.status, answer.error["param"]) == (400, "messages")
        assert "roles must alternate" in answer.error["message"]


async def test_a_template_that_crashes_costs_its_own_request(serve: Serve) -> None:
    template = (
        "{% set a = namespace() %}{% set b = namespace() %}{% set a.x = a %}{% set b.x = b %}"
        "{% if messages[0].content == 'die' %}{{ a == b }}{% endif %}"
    )
    async with serve(model={"template": template}) as server:
        dying = asyncio.create_task(server.chat("die"))
        # The loop is free while the template is at work.
        assert (await server.request("GET", "/health")).status == 200
        assert not dying.done()
        answer = await dying
        assert (answer.status, answer.error["code"]) == (400, "template_failed")
        assert "killed by signal 11" in answer.error["message"]
        assert (await server.chat("live")).status == 200


async def test_a_client_that_reads_slowly_gets_everything(serve: Serve) -> None:
    scenario = {"caps": "proto=1 ctx=4000 slots=2 submit=", "repeat": 800, "tokens": ["x" * 4096]}
    async with serve(scenario) as server:
        stream = await server.chat_stream(max_tokens=4000)
        await stream.read_head()
        await until(lambda: server.engine.in_flight == 0)
        quick = await server.chat(max_tokens=1)
        assert quick.status == 200
        got = [json.loads(item) async for item in stream.data() if item != "[DONE]"]
        assert content(got) == "x" * 4096 * 800
        await stream.close()


async def test_a_token_that_comes_alone_is_sent_at_once(serve: Serve) -> None:
    # The second token is due in a minute.
    async with serve({"token_s": 60.0}) as server:
        stream = await server.chat_stream()
        await stream.read_head()
        async with asyncio.timeout(10):
            events = stream.data()
            await anext(events)
            assert content([json.loads(await anext(events))]) == "Hello"
        stream.abort()


async def test_tokens_that_come_together_are_events_of_their_own(serve: Serve) -> None:
    # Past the bound of a turn that nobody reads they are merged; here nothing is that slow.
    async with serve({"tokens": ["a", "b"], "repeat": 20}) as server:
        got = await chunks(await server.chat_stream())
        texts = [choice["delta"].get("content") for chunk in got for choice in chunk["choices"]]
        assert [text for text in texts if text] == ["a", "b"] * 20


def unchunked(body: bytes) -> bytes:
    """What the chunks of an HTTP/1.1 reply hold."""
    data = b""
    while True:
        head, _, rest = body.partition(b"\r\n")
        size = int(head, 16)
        assert rest[size : size + 2] == b"\r\n"
        data += rest[:size]
        body = rest[size + 2 :]
        if size == 0:
            assert body == b""
            return data


async def test_chunks_of_a_slow_reader_are_well_framed(serve: Serve) -> None:
    scenario = {"caps": "proto=1 ctx=4000 slots=2 submit=", "repeat": 800, "tokens": ["x" * 4096]}
    async with serve(scenario) as server:
        body = json.dumps(chat_body(stream=True, max_tokens=4000)).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert b"Transfer-Encoding: chunked" in await reader.readuntil(b"\r\n\r\n")
        await until(lambda: server.engine.in_flight == 0)
        events = unchunked(await reader.read()).decode().split("\n\n")
        writer.close()
        data = [event.removeprefix("data: ") for event in events if event.startswith("data: ")]
        assert data[-1] == "[DONE]"
        assert content([json.loads(item) for item in data[:-1]]) == "x" * 4096 * 800
