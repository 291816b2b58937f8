"""The exceptions of this package.

Every class says how HTTP reports it; ``handlers.base`` is the only place that writes such a reply.
"""

from __future__ import annotations

import signal


class ColibriError(Exception):
    """Base of everything raised on purpose here.

    Attributes:
        hint: advice that goes with the message, or ``None``.
        status: HTTP status of a reply that reports this error.
        error_type: ``type`` of the OpenAI error object.
        code: ``code`` of the OpenAI error object.
        retry_after_s: seconds after which a retry makes sense, or ``None``.
    """

    status = 500
    error_type = "server_error"
    code: str | None = "internal_error"
    param: str | None = None
    retry_after_s: int | None = None

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class RequestError(ColibriError):
    """A request that is refused; nothing was changed by it."""

    status = 400
    error_type = "invalid_request_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.param = param
        self.code = code
        self.status = status


class QueueFull(ColibriError):
    """Every slot is busy and as many requests as allowed are waiting."""

    status = 429
    error_type = "rate_limit_error"
    code = "queue_full"
    retry_after_s = 1


class ModelError(ColibriError):
    """A model folder that is missing or cannot be used."""

    status = 400
    error_type = "invalid_request_error"
    code = "model_error"


class UsageError(ColibriError):
    """A command line or setting that cannot be used."""


class EngineError(ColibriError):
    """The engine failed, or failed this request."""

    code = "engine_error"


class EngineUnavailable(EngineError):
    """The engine is not ready for requests now."""

    status = 503
    code = "engine_unavailable"
    retry_after_s = 2


class EngineStartError(EngineError):
    """The engine ended before it was ready.

    Attributes:
        exit_code: what the command line should exit with.
    """

    status = 503
    code = "engine_start_failed"

    def __init__(self, message: str, *, hint: str | None = None, exit_code: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


class EngineDied(EngineError):
    """The engine process ended while a request was in flight."""

    status = 502
    code = "engine_died"
    retry_after_s = 2


class ProtocolError(EngineError):
    """The engine sent something that makes its stream unusable."""

    status = 502
    code = "engine_protocol_error"


def of_refusal(code: str, words: list[str]) -> ColibriError:
    """Returns what an ERROR of the engine means to whoever asked; ``words`` follow its code."""
    detail = " ".join(words)
    match code:
        case "CONTEXT_EXCEEDED":
            numbers = [word for word in words if word.isdigit()]
            if len(numbers) >= 2:
                least = "at least " if "least" in words else ""
                text = (
                    f"the prompt has {least}{numbers[0]} tokens, "
                    f"the context takes at most {numbers[1]}"
                )
            else:
                text = "the prompt does not fit in the context"
            return RequestError(
                text,
                code="context_length_exceeded",
                hint="shorten the prompt or start the server with a larger --ctx",
            )
        case "EMPTY_PROMPT":
            return RequestError("the prompt is empty", code="empty_prompt")
        case "BAD_REQUEST":
            return RequestError(f"the engine refused the request: {detail}".rstrip(": "))
        case "CANCELLED":
            return EngineError("the request was cancelled")
        case "ENGINE":
            return EngineError(f"the engine failed this request: {detail}")
        case _:
            return EngineError(f"the engine reported {code} {detail}".rstrip())


class Terminated(BaseException):
    """SIGTERM or SIGHUP came. No error that work may catch, as ``KeyboardInterrupt`` is none."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        # As shells report it.
        self.exit_code = 128 + number
