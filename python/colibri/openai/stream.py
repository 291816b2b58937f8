"""Reply objects and server-sent events."""

from __future__ import annotations

import time
import uuid
from typing import Any

from colibri.openai.json import dumps, quote

DONE = b"data: [DONE]\n\n"


def sse(payload: str, *, event: str | None = None, event_id: int | None = None) -> bytes:
    """Returns one event; ``payload`` is one line."""
    head = "" if event is None else f"event: {event}\n"
    if event_id is not None:
        head += f"id: {event_id}\n"
    return f"{head}data: {payload}\n\n".encode()


def comment(text: str) -> bytes:
    """Returns a comment, which parsers skip and sockets notice."""
    return f": {text}\n\n".encode()


class Reply:
    """Builds the objects of one reply; all of them share id, time and model.

    Args:
        model: the served name.
        chat: chat completion, else text completion.
    """

    def __init__(self, model: str, *, chat: bool) -> None:
        self.chat = chat
        self.id = ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex
        self.created = int(time.time())
        self.model = model

    def whole(
        self,
        *,
        content: str,
        reasoning: str,
        finish_reason: str,
        usage: dict[str, Any],
        colibri: dict[str, Any] | None,
    ) -> dict[str, Any]:
        """Returns the reply to a request that is not streamed."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish_reason}
        if self.chat:
            message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
            if reasoning:
                message["reasoning_content"] = reasoning
            choice["message"] = message
        else:
            choice["text"] = content
        kind = "chat.completion" if self.chat else "text_completion"
        reply = {**self._head(kind), "choices": [choice], "usage": usage}
        if colibri is not None:
            reply["colibri"] = colibri
        return reply

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class ChunkWriter:
    """Encodes the chunks of one stream.

    Nearly every chunk differs from the last only in its text, so the event around the text is
    encoded once.
    """

    def __init__(self, reply: Reply, *, include_usage: bool) -> None:
        self._reply = reply
        self._include_usage = include_usage
        kind = "chat.completion.chunk" if reply.chat else "text_completion"
        self._head = dumps(reply._head(kind))[:-1]
        # With include_usage the standard wants the key in every chunk.
        self._tail = ',"usage":null}' if include_usage else "}"
        head = f'data: {self._head},"choices":[{{"index":0,'
        end = f',"logprobs":null,"finish_reason":null}}]{self._tail}\n\n'
        if reply.chat:
            self._around = {
                "content": (f'{head}"delta":{{"content":'.encode(), f"}}{end}".encode()),
                "reasoning": (
                    f'{head}"delta":{{"reasoning_content":'.encode(),
                    f"}}{end}".encode(),
                ),
            }
        else:
            self._around = {"content": (f'{head}"text":'.encode(), end.encode())}

    def role(self) -> bytes:
        """Returns the first chunk of a chat, which names the role."""
        return self._choice({"index": 0, "delta": {"role": "assistant", "content": ""}})

    def text(self, kind: str, text: str) -> bytes:
        """Returns a chunk with a piece of the answer."""
        head, end = self._around[kind]
        return head + quote(text).encode() + end

    def finish(self, reason: str) -> bytes:
        """Returns the chunk that says why the answer ended."""
        body: dict[str, Any] = {"delta": {}} if self._reply.chat else {"text": ""}
        return self._choice({"index": 0, **body}, reason)

    def figures(self, usage: dict[str, Any], colibri: dict[str, Any] | None) -> bytes:
        """Returns the chunk without choices that ends a stream; empty if nobody wants it.

        Usage and our own object share one chunk, so that each is the last before ``[DONE]``.
        """
        if colibri is None and not self._include_usage:
            return b""
        chunk = self._head + ',"choices":[]'
        if self._include_usage:
            chunk += f',"usage":{dumps(usage)}'
        if colibri is not None:
            chunk += f',"colibri":{dumps(colibri)}'
        return sse(chunk + "}")

    def _choice(self, choice: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {**choice, "logprobs": None, "finish_reason": reason}
        return sse(f'{self._head},"choices":[{dumps(choice)}]{self._tail}')
