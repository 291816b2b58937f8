from __future__ import annotations

import json

import pytest

from colibri.openai.stream import ChunkWriter, Reply, comment, sse


def payload(event: bytes) -> dict[str, object]:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    value: dict[str, object] = json.loads(event.removeprefix(b"data: "))
    return value


@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize("chat", [False, True])
def test_prebuilt_chunks_are_whole_objects(chat: bool, include_usage: bool) -> None:
    reply = Reply('m"x', chat=chat)
    writer = ChunkWriter(reply, include_usage=include_usage)
    text = 'a "quoted"\n\nline </script> 😀\u2028'
    events = [writer.text("content", text), writer.finish("stop")]
    if chat:
        events += [writer.role(), writer.text("reasoning", text)]
    for event in events:
        chunk = payload(event)
        assert (chunk["id"], chunk["created"], chunk["model"]) == (reply.id, reply.created, 'm"x')
        assert ("usage" in chunk) == include_usage
        [choice] = chunk["choices"]  # type: ignore[misc]
        assert choice["index"] == 0
        assert choice["logprobs"] is None
    chunk = payload(events[0])
    [choice] = chunk["choices"]  # type: ignore[misc]
    assert choice["finish_reason"] is None
    assert (choice["delta"]["content"] if chat else choice["text"]) == text
    assert chunk["object"] == ("chat.completion.chunk" if chat else "text_completion")


def test_the_last_chunk_holds_what_was_asked_for() -> None:
    reply = Reply("m", chat=True)
    usage = {"total_tokens": 3}
    assert ChunkWriter(reply, include_usage=False).figures(usage, None) == b""
    chunk = payload(ChunkWriter(reply, include_usage=False).figures(usage, {"stats": {}}))
    assert chunk["choices"] == []
    assert chunk["colibri"] == {"stats": {}}
    assert "usage" not in chunk
    chunk = payload(ChunkWriter(reply, include_usage=True).figures(usage, {"stats": {}}))
    assert chunk["usage"] == usage
    assert chunk["object"] == "chat.completion.chunk"


def test_events_and_comments_are_framed() -> None:
    assert sse("{}", event="ping", event_id=3) == b"event: ping\nid: 3\ndata: {}\n\n"
    assert comment("keepalive") == b": keepalive\n\n"
