"""Run Mixture-of-Experts language models whose experts do not fit in memory.

``Model`` runs a model in this process; ``colibri serve`` runs an OpenAI-compatible server. Names
are loaded on first use, so that the command line starts without numpy and the extension.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from colibri.errors import ColibriError, EngineError, ModelError, RequestError

if TYPE_CHECKING:
    from colibri.model import Model, Token

    __version__: str

__all__ = [
    "ColibriError",
    "EngineError",
    "Model",
    "ModelError",
    "RequestError",
    "Token",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in ("Model", "Token"):
        from colibri import model

        return getattr(model, name)
    if name == "__version__":
        from colibri import _core

        return _core.__version__
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
