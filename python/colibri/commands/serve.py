"""``colibri serve`` and ``colibri web``."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import threading
import webbrowser

from colibri import _core
from colibri.commands.console import ProgressLine, engine_config
from colibri.errors import ModelError
from colibri.models import model_dirs, read_model, resolve_model
from colibri.tornado_app import ServeSettings, bind, serve


def run(args: argparse.Namespace) -> int:
    """Serves until it is interrupted."""
    logging.basicConfig(
        level=logging.INFO if args.verbose else logging.WARNING,
        format="%(asctime)s %(name)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    folder = resolve_model(args.model)
    model = read_model(folder, args.model_id)
    settings = ServeSettings(
        host=args.host,
        port=args.port,
        api_key=args.api_key or None,
        max_queue=args.max_queue,
        allowed_hosts=tuple(args.allowed_host),
        cors_origins=tuple(args.cors_origin),
        telemetry=not args.no_telemetry,
    )
    sockets = bind(settings)
    try:
        geometry = describe_or_raise(str(folder))
    except ModelError:
        # What the page shows besides; the engine is about to refuse the model in its own words.
        geometry = {}
    # Where the model lies is nobody's business on the network.
    geometry.pop("path", None)
    host = f"[{args.host}]" if ":" in args.host else args.host
    url = f"http://{host}:{sockets[0].getsockname()[1]}/"
    progress = ProgressLine()

    def ready() -> None:
        progress.clear()
        print(f"serving {model.id} at {url}", file=sys.stderr, flush=True)
        if args.open_browser:
            # A browser may take its time, and one in a terminal never returns.
            threading.Thread(target=_open_browser, args=(url,), daemon=True).start()

    asyncio.run(
        serve(
            settings,
            engine_config(args, model, args.slots),
            model,
            sockets,
            version=_core.__version__,
            geometry=geometry,
            on_log=progress.log,
            on_state=progress.on_state,
            on_ready=ready,
        )
    )
    return 0


def _open_browser(url: str) -> None:
    if not webbrowser.open(url):
        print("hint: no browser was found; open the address yourself", file=sys.stderr)


def describe_or_raise(path: str) -> dict[str, object]:
    """Returns what the engine says about a model folder.

    Raises:
        ModelError: it cannot read it.
    """
    try:
        described: dict[str, object] = json.loads(_core.describe(path, model_dirs()))
    except _core.ColibriCoreError as error:
        raise ModelError(str(error), hint=error.hint) from error
    return described
