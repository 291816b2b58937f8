"""Messages to prompt, by the model's own chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from colibri import _core
from colibri.errors import ModelError, RequestError
from colibri.models import ModelInfo
from colibri.openai.json import dumps
from colibri.text_filters import THINK_OPEN


class PromptRenderer:
    """Renders conversations for one model.

    Raises:
        ModelError: the template is not valid.
    """

    def __init__(self, model: ModelInfo) -> None:
        self._template: _core.ChatTemplate | None = None
        self._source = model.template or ""
        if model.template is not None:
            try:
                self._template = _core.ChatTemplate(
                    model.template, bos_token=model.bos_token, eos_token=model.eos_token
                )
            except _core.ColibriCoreError as error:
                raise ModelError(f"chat template: {error}") from error

    @property
    def available(self) -> bool:
        """Whether the model has a chat template."""
        return self._template is not None

    @property
    def thinks(self) -> bool:
        """Whether the template knows thinking."""
        return THINK_OPEN in self._source

    def render(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any] | None = None
    ) -> str:
        """Returns the prompt that asks for the next answer.

        Raises:
            RequestError: the template refuses these messages, or there is none.
        """
        if self._template is None:
            raise RequestError(
                "this model has no chat template",
                code="no_chat_template",
                hint="send the text to /v1/completions",
            )
        context = {**(variables or {}), "messages": messages, "add_generation_prompt": True}
        try:
            return self._template.render(dumps(context))
        except _core.ColibriCoreError as error:
            raise RequestError(
                f"the chat template refuses these messages: {error}", param="messages"
            ) from error
