"""Builds the package: the web page first, then everything else by maturin.

This is the PEP 517 backend that pyproject.toml names, so that ``pip install .`` carries the page.
The page is built where its sources are and Node is; an sdist carries it built. Without either the
package installs without a page, says so, and the server shows how to get it.
"""

from __future__ import annotations

from typing import Any

import maturin
from maturin import (
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

from build_page import build_page

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


def build_wheel(*args: Any, **kwargs: Any) -> str:
    """Builds page and wheel."""
    build_page()
    return maturin.build_wheel(*args, **kwargs)


def build_sdist(*args: Any, **kwargs: Any) -> str:
    """Builds page and source package."""
    build_page()
    return maturin.build_sdist(*args, **kwargs)


def build_editable(*args: Any, **kwargs: Any) -> str:
    """Builds page and editable wheel."""
    build_page()
    return maturin.build_editable(*args, **kwargs)
