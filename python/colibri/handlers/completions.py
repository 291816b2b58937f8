"""``POST /v1/completions``: a prompt as it stands, without a chat template."""

from __future__ import annotations

from typing import Any, ClassVar

from colibri.admission import raw_affinity
from colibri.handlers.base import Auth
from colibri.handlers.chat import GenerationHandler
from colibri.openai.schema import parse_completion


class CompletionHandler(GenerationHandler):
    """``POST /v1/completions``."""

    auth: ClassVar[dict[str, Auth]] = {"post": "key"}
    chat_shape: ClassVar[bool] = False

    async def post(self) -> None:
        """Continues a text."""
        request = parse_completion(self.json_body())
        self.check_model(request.sampling.model)
        prompt = self.build_prompt(request.prompt, request.sampling, raw_affinity(request.prompt))
        await self.while_connected(self.answer(prompt, request.sampling, chat=False))


ROUTES: list[tuple[str, Any]] = [(r"/v1/completions", CompletionHandler)]
