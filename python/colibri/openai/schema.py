"""What a request may hold.

One table per endpoint says for each field which values it takes and what becomes of it. Fields
that would change the answer and are not supported are refused by name; unknown ones are ignored,
because clients send what the newest API knows. ``null`` always means the default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from colibri.errors import RequestError

MAX_STOPS = 4
MAX_STOP_CHARS = 1024
MAX_MESSAGES = 10_000
MAX_TOKENS = 2**31 - 1
MAX_SEED = 2**64 - 1
# What the engine takes in one prompt (protocol.md section 2).
MAX_PROMPT_BYTES = 16 << 20
MAX_BIASES = 300
MAX_TOKEN_ID = 2**32 - 1

Check = Callable[[Any], Any]


@dataclass(frozen=True)
class Field:
    """One field of a request body.

    Attributes:
        check: returns the value in our form, or raises ``ValueError`` saying what is wrong.
        default: what a missing or ``null`` field means.
        rule: ``accepted``, or ``refused`` when any value that ``check`` takes is harmless and
            everything else is not supported.
        note: what it does, or why it is refused.
    """

    check: Check
    default: Any = None
    rule: Literal["accepted", "refused"] = "accepted"
    note: str = ""


@dataclass(frozen=True)
class Sampling:
    """What both endpoints share.

    Attributes:
        model: the name the client asked for.
        stream: whether to answer as a stream.
        include_usage: whether a stream ends with the usage.
        max_tokens: most tokens, ``None`` for the room there is.
        temperature: ``None`` for the model's default.
        top_p: ``None`` for the model's default.
        stop: texts that end the answer.
        options: engine options by their name on the wire, with the field they came from.
    """

    model: str | None
    stream: bool
    include_usage: bool
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    stop: tuple[str, ...]
    options: dict[str, tuple[str, str]]


@dataclass(frozen=True)
class ChatRequest:
    """A valid body of ``/v1/chat/completions``."""

    sampling: Sampling
    messages: list[dict[str, str]]
    template_variables: dict[str, Any]


@dataclass(frozen=True)
class CompletionRequest:
    """A valid body of ``/v1/completions``."""

    sampling: Sampling
    prompt: str


# --- checks of single values ---


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")  # noqa: TRY004 - one exception for all checks
    return value


def _integer(low: int, high: int) -> Check:
    def check(value: Any) -> int:
        # JSON has one number type: 8.0 is an integer there, and some clients write it.
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"must be an integer from {low} to {high}")
        return value

    return check


def _number(low: float, high: float, *, above_low: bool = False) -> Check:
    def check(value: Any) -> float:
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= high
            or (above_low and value == low)
        ):
            bound = f"above {low:g} and at most {high:g}" if above_low else f"{low:g} to {high:g}"
            raise ValueError(f"must be a number, {bound}")
        # Minus zero is zero, and the wire takes no sign.
        return float(value) + 0.0

    return check


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")  # noqa: TRY004 - one exception for all checks
    if "\0" in value:
        raise ValueError("must not hold a NUL character")
    return value


def _stops(value: Any) -> tuple[str, ...]:
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, list) or len(entries) > MAX_STOPS:
        raise ValueError(f"must be a string or a list of at most {MAX_STOPS} strings")
    for entry in entries:
        if not isinstance(entry, str) or not 0 < len(entry) <= MAX_STOP_CHARS:
            raise ValueError(f"must hold strings of 1 to {MAX_STOP_CHARS} characters")
    return tuple(entries)


def _biases(value: Any) -> dict[int, float]:
    if not isinstance(value, dict) or len(value) > MAX_BIASES:
        raise ValueError(f"must be an object of at most {MAX_BIASES} token ids and numbers")
    biases = {}
    for key, bias in value.items():
        # Keys of JSON objects are strings; ids are written as the tokenizer counts them.
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= MAX_TOKEN_ID):
            raise ValueError(f"{key[:40]!r} is no token id")
        try:
            biases[int(key)] = _number(-100, 100)(bias)
        except ValueError as error:
            raise ValueError(f"the value of {key} {error}") from error
    return biases


def _stream_options(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("must be an object")  # noqa: TRY004 - one exception for all checks
    include = value.get("include_usage")
    if include is not None and not isinstance(include, bool):
        raise ValueError("include_usage must be true or false")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("must be an object")  # noqa: TRY004 - one exception for all checks
    return value


def _text_format(value: Any) -> None:
    if not isinstance(value, dict) or value.get("type") != "text":
        raise ValueError('only {"type": "text"} is supported')


def _one(value: Any) -> None:
    if isinstance(value, bool) or value != 1:
        raise ValueError("only 1 is supported")


def _false(value: Any) -> None:
    if value is not False:
        raise ValueError("is not supported")


def _absent(value: Any) -> None:
    raise ValueError("is not supported")


def _empty(value: Any) -> None:
    if not isinstance(value, list | dict | str) or value:
        raise ValueError("is not supported")


def _zero(value: Any) -> None:
    if isinstance(value, bool) or value != 0:
        raise ValueError("is not supported")


def _tool_choice(value: Any) -> None:
    if value not in ("none", "auto"):
        raise ValueError("tools are not supported")


# --- the tables ---

# Fields that become an option on the wire: name there, and the value that asks for nothing.
_OPTIONS: dict[str, tuple[str, Any]] = {
    "seed": ("seed", None),
    "top_k": ("top_k", 0),
    "min_p": ("min_p", 0.0),
    "presence_penalty": ("presence", 0.0),
    "frequency_penalty": ("frequency", 0.0),
    "repetition_penalty": ("repetition", 1.0),
    "logit_bias": ("bias", {}),
    "ignore_eos": ("ignore_eos", False),
}

COMMON_FIELDS: dict[str, Field] = {
    "model": Field(_text, note="the served name, or 'default'"),
    "stream": Field(_boolean, default=False),
    "stream_options": Field(_stream_options, default={}),
    "max_tokens": Field(
        _integer(1, MAX_TOKENS), note="max_completion_tokens wins if both are given"
    ),
    "max_completion_tokens": Field(_integer(1, MAX_TOKENS)),
    "temperature": Field(_number(0, 2)),
    "top_p": Field(_number(0, 1, above_low=True)),
    "stop": Field(_stops, default=()),
    "seed": Field(_integer(0, MAX_SEED), note="if the engine offers it"),
    "top_k": Field(_integer(0, 2**31 - 1), default=0, note="if the engine offers it"),
    "min_p": Field(_number(0, 1), default=0.0, note="if the engine offers it"),
    "presence_penalty": Field(_number(-2, 2), default=0.0, note="if the engine offers it"),
    "frequency_penalty": Field(_number(-2, 2), default=0.0, note="if the engine offers it"),
    "repetition_penalty": Field(
        _number(0, 10, above_low=True), default=1.0, note="if the engine offers it"
    ),
    "logit_bias": Field(_biases, default={}, note="if the engine offers it"),
    "ignore_eos": Field(_boolean, default=False, note="if the engine offers it"),
    "n": Field(_one, rule="refused", note="one answer per request"),
    "best_of": Field(_one, rule="refused", note="one answer per request"),
}

CHAT_FIELDS: dict[str, Field] = {
    **COMMON_FIELDS,
    "logprobs": Field(_false, rule="refused", note="the chosen token's probability is not known"),
    "top_logprobs": Field(_zero, rule="refused", note="needs logprobs"),
    "response_format": Field(_text_format, rule="refused", note="answers are plain text"),
    "tools": Field(_empty, rule="refused", note="tools are not supported"),
    "functions": Field(_empty, rule="refused", note="tools are not supported"),
    "tool_choice": Field(_tool_choice, rule="refused", note="tools are not supported"),
    "function_call": Field(_tool_choice, rule="refused", note="tools are not supported"),
    "reasoning_effort": Field(_text, note="passed to the chat template"),
    "enable_thinking": Field(_boolean, note="passed to the chat template"),
    "chat_template_kwargs": Field(_object, default={}, note="passed to the chat template"),
}

COMPLETION_FIELDS: dict[str, Field] = {
    **COMMON_FIELDS,
    "logprobs": Field(_absent, rule="refused", note="the chosen token's probability is not known"),
    "echo": Field(_false, rule="refused", note="the prompt is not repeated"),
    "suffix": Field(_empty, rule="refused", note="text is continued, not filled in"),
}


def _read(body: Mapping[str, Any], table: Mapping[str, Field]) -> dict[str, Any]:
    values = {}
    for name, field in table.items():
        value = body.get(name)
        if value is None:
            values[name] = field.default
            continue
        try:
            values[name] = field.check(value)
        except ValueError as error:
            message = f"{name}: {error}"
            if field.rule == "refused" and field.note:
                message += f" ({field.note})"
            raise RequestError(message, param=name, code="unsupported_value") from error
    return values


def _sampling(values: Mapping[str, Any]) -> Sampling:
    options = {}
    for name, (wire_name, neutral) in _OPTIONS.items():
        value = values[name]
        if value is not None and value != neutral:
            options[wire_name] = (_on_the_wire(value), name)
    return Sampling(
        model=values["model"],
        stream=values["stream"],
        include_usage=bool(values["stream_options"].get("include_usage")),
        max_tokens=values["max_completion_tokens"] or values["max_tokens"],
        temperature=values["temperature"],
        top_p=values["top_p"],
        stop=values["stop"],
        options=options,
    )


def _on_the_wire(value: Any) -> str:
    match value:
        case True:
            return "1"
        case float():
            return f"{value:.6g}"
        case dict():
            return ",".join(f"{token}:{_on_the_wire(bias)}" for token, bias in value.items())
        case _:
            return str(value)


def engine_options(sampling: Sampling, offered: frozenset[str]) -> dict[str, str]:
    """Returns the options to send.

    Raises:
        RequestError: one of them is not offered by this engine.
    """
    for wire_name, (_, field) in sampling.options.items():
        if wire_name not in offered:
            raise RequestError(
                f"{field}: this engine does not support it", param=field, code="unsupported_value"
            )
    return {wire_name: text for wire_name, (text, _) in sampling.options.items()}


def parse_chat(body: Any) -> ChatRequest:
    """Validates a body of ``/v1/chat/completions``.

    Raises:
        RequestError: naming the field.
    """
    body = _check_body(body)
    values = _read(body, CHAT_FIELDS)
    variables = {
        name: value for name, value in values["chat_template_kwargs"].items() if name != "messages"
    }
    for name in ("reasoning_effort", "enable_thinking"):
        if values[name] is not None:
            variables[name] = values[name]
    return ChatRequest(_sampling(values), _messages(body.get("messages")), variables)


def parse_completion(body: Any) -> CompletionRequest:
    """Validates a body of ``/v1/completions``.

    Raises:
        RequestError: naming the field.
    """
    body = _check_body(body)
    values = _read(body, COMPLETION_FIELDS)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise RequestError("prompt: must be one string", param="prompt")
    try:
        _text(prompt)
    except ValueError as error:
        raise RequestError(f"prompt: {error}", param="prompt") from error
    if not prompt:
        raise RequestError("prompt: must not be empty", param="prompt")
    check_prompt_size(prompt, "prompt")
    return CompletionRequest(_sampling(values), prompt)


def check_prompt_size(prompt: str, param: str) -> None:
    """Refuses a prompt that is too large for the wire."""
    size = len(prompt.encode())
    if size > MAX_PROMPT_BYTES:
        raise RequestError(
            f"the prompt has {size} bytes, the most is {MAX_PROMPT_BYTES}",
            param=param,
            code="context_length_exceeded",
        )


def _check_body(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object")
    return body


_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}


def _messages(value: Any) -> list[dict[str, str]]:
    if not isinstance(value, list) or not value:
        raise RequestError("messages: must be a list with at least one message", param="messages")
    if len(value) > MAX_MESSAGES:
        raise RequestError(f"messages: at most {MAX_MESSAGES} messages", param="messages")
    messages = [_message(message, f"messages[{index}]") for index, message in enumerate(value)]
    if messages[-1]["role"] == "assistant":
        raise RequestError(
            "messages: the last one must not be from the assistant; continuing a given answer is "
            "not supported",
            param="messages",
        )
    return messages


def _message(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise RequestError(f"{where}: must be an object", param=where)
    role = message.get("role")
    if role in ("tool", "function") or message.get("tool_calls"):
        raise RequestError(f"{where}: tools are not supported", param=where)
    if not isinstance(role, str) or role not in _ROLES:
        roles = ", ".join(_ROLES)
        raise RequestError(f"{where}.role: must be one of {roles}", param=f"{where}.role")
    content = message.get("content")
    if content is None and role == "assistant":
        content = ""
    return {"role": _ROLES[role], "content": _content(content, f"{where}.content")}


def _content(content: Any, where: str) -> str:
    if isinstance(content, list):
        parts = []
        for index, part in enumerate(content):
            kind = part.get("type") if isinstance(part, dict) else None
            if kind not in ("text", "input_text") or not isinstance(part.get("text"), str):
                raise RequestError(
                    f"{where}[{index}]: only parts of type text are supported",
                    param=where,
                    code="unsupported_value",
                )
            parts.append(part["text"])
        content = "".join(parts)
    try:
        return _text(content)
    except ValueError as error:
        raise RequestError(f"{where}: {error}", param=where) from error
