"""The official client, at its default settings, against the server over a scripted engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from conftest import Server, until

Serve = Callable[..., Server]
SAID = "Hello there, friend."
USER: Any = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def client_of(server: Server, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    options = {"api_key": "unused", "max_retries": 0, **options}
    async with openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", **options) as client:
        yield client


async def test_chat(serve: Serve) -> None:
    async with serve() as server, client_of(server) as client:
        answer = await client.chat.completions.create(model="fake", messages=USER)
        assert answer.choices[0].message.content == SAID
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 5
        assert answer.model_extra is not None
        assert answer.model_extra["colibri"]["stats"]["completion_tokens"] == 5


async def test_streamed_chat(serve: Serve) -> None:
    silent = serve({"prefill_s": 0.3}, service={"keepalive_s": 0.1})
    async with silent as server, client_of(server) as client:
        stream = await client.chat.completions.create(
            model="fake",
            messages=USER,
            stream=True,
            stream_options={"include_usage": True},
            max_tokens=3,
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)
    assert text == "Hello there,"
    assert [c.finish_reason for chunk in chunks for c in chunk.choices][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3


async def test_the_stream_helper_of_the_client(serve: Serve) -> None:
    async with serve() as server, client_of(server) as client:
        async with client.chat.completions.stream(model="fake", messages=USER) as stream:
            deltas = [event.delta async for event in stream if event.type == "content.delta"]
            final = await stream.get_final_completion()
        assert "".join(deltas) == SAID
        assert final.choices[0].message.content == SAID


async def test_completions(serve: Serve) -> None:
    async with serve() as server, client_of(server) as client:
        answer = await client.completions.create(model="fake", prompt="Once", stop=["friend"])
        assert answer.choices[0].text == "Hello there, "
        stream = await client.completions.create(model="fake", prompt="Once", stream=True)
        assert "".join([c.text async for chunk in stream for c in chunk.choices]) == SAID


async def test_models(serve: Serve) -> None:
    async with serve(model={"id": "org/name"}) as server, client_of(server) as client:
        models = await client.models.list()
        assert [model.id for model in models.data] == ["org/name"]
        assert (await client.models.retrieve("org/name")).owned_by == "colibri"


async def test_errors_become_the_exceptions_of_the_client(serve: Serve) -> None:
    async with serve({"limit": 2}, api_key="sesame") as server:
        async with client_of(server) as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
        async with client_of(server, api_key="sesame") as client:
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model="gpt-4o", messages=USER)
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(model="fake", messages=USER, n=3)
            assert caught.value.param == "n"
            long: Any = [{"role": "user", "content": "a b c d"}]
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(model="fake", messages=long, stream=True)
            assert caught.value.code == "context_length_exceeded"


async def test_an_error_within_a_stream_raises(serve: Serve) -> None:
    async with serve({"error_after": 2}) as server, client_of(server) as client:
        stream = await client.chat.completions.create(model="fake", messages=USER, stream=True)
        texts: list[str] = []

        async def read() -> None:
            async for chunk in stream:
                texts.extend(c.delta.content or "" for c in chunk.choices)

        with pytest.raises(openai.APIError, match="disk read failed"):
            await read()
        assert "".join(texts) == "Hello there"


async def test_a_busy_server_is_retried_until_it_answers(serve: Serve) -> None:
    scenario = {"prompts": {"long": {"repeat": 100, "token_s": 0.02}}}
    async with serve(scenario, slots=1, max_queue=0) as server:
        running = await server.chat_stream("long", max_tokens=25)
        await running.read_head()
        async with client_of(server, max_retries=3) as client:
            answer = await client.chat.completions.create(model="fake", messages=USER)
        assert answer.choices[0].message.content == SAID
        assert server.service.admission.rejected >= 1
        running.abort()


async def test_leaving_a_stream_cancels(serve: Serve) -> None:
    async with serve({"repeat": 100, "token_s": 0.02}) as server, client_of(server) as client:
        stream = await client.chat.completions.create(model="fake", messages=USER, stream=True)
        async for _ in stream:
            break
        await stream.close()
        await until(lambda: server.files.count("CANCEL") == 1, 1.0)
