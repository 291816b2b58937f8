"""Messages to prompt, by the model's own chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from colibri import _core
from colibri.errors import ModelError, RequestError
from colibri.models import ModelInfo
from colibri.openai.json import dumps
from colibri.template_process import TemplateProcess
from colibri.text_filters import THINK_OPEN


class PromptRenderer:
    """Renders conversations for one model.

    Raises:
        ModelError: the template is not valid.
    """

    def __init__(self, model: ModelInfo) -> None:
        self._process: TemplateProcess | None = None
        self._source = model.template or ""
        if model.template is not None:
            tokens = {"bos_token": model.bos_token, "eos_token": model.eos_token}
            try:
                # A mistake in it is known at once; what is rendered is compiled over there.
                _core.ChatTemplate(model.template, **tokens)
            except _core.ColibriCoreError as error:
                raise ModelError(str(error)) from error
            except UnicodeError as error:
                raise ModelError("chat template: half of a surrogate pair") from error
            self._process = TemplateProcess({"source": model.template, **tokens})

    @property
    def available(self) -> bool:
        """Whether the model has a chat template."""
        return self._process is not None

    @property
    def thinks(self) -> bool:
        """Whether the template knows thinking."""
        return THINK_OPEN in self._source

    def render(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any] | None = None
    ) -> str:
        """Returns the prompt that asks for the next answer; blocks for as long as that takes.

        Raises:
            RequestError: the template refuses these messages or fails, or there is none.
        """
        return self._template().render(_context(messages, variables))

    async def render_async(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any] | None = None
    ) -> str:
        """Does the same without blocking the event loop."""
        return await self._template().render_async(_context(messages, variables))

    def _template(self) -> TemplateProcess:
        if self._process is None:
            raise RequestError(
                "this model has no chat template",
                code="no_chat_template",
                hint="send the text to /v1/completions",
            )
        return self._process


def _context(messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any] | None) -> str:
    return dumps({**(variables or {}), "messages": messages, "add_generation_prompt": True})
