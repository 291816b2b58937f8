"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

from typing import Any, ClassVar

from colibri.errors import RequestError
from colibri.handlers.base import Auth, BaseHandler, Service


def model_object(service: Service) -> dict[str, Any]:
    """Returns the one model as OpenAI describes models, with the context that really holds."""
    return {
        "id": service.model.id,
        "object": "model",
        "created": service.created,
        "owned_by": "colibri",
        "context_length": service.engine.ctx,
        "max_model_len": service.engine.ctx,
    }


class ModelsHandler(BaseHandler):
    """``GET /v1/models``."""

    auth: ClassVar[dict[str, Auth]] = {"get": "key"}

    def get(self) -> None:
        """Lists the one model."""
        self.send_json({"object": "list", "data": [model_object(self.service)]})


class ModelHandler(BaseHandler):
    """``GET /v1/models/{id}``."""

    auth: ClassVar[dict[str, Auth]] = {"get": "key"}

    def get(self, name: str) -> None:
        """Describes a model by its name, which may hold slashes."""
        if name != self.service.model.id:
            raise RequestError(
                f"the model {name!r} is not served here",
                param="model",
                code="model_not_found",
                status=404,
            )
        self.send_json(model_object(self.service))


ROUTES: list[tuple[str, Any]] = [
    (r"/v1/models", ModelsHandler),
    (r"/v1/models/(.+)", ModelHandler),
]
