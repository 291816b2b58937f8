"""Which model a name means, and what its folder says beside the weights."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colibri.errors import ModelError

DEMO_NAME = "demo"
DEFAULT_TEMPERATURE = 0.7
DEFAULT_TOP_P = 0.9
# Configuration files are small; a huge one is not a configuration.
MAX_CONFIG_BYTES = 64 << 20


def demo_folder() -> Path:
    """Returns the folder of the model that comes with the package."""
    return Path(__file__).parent / "demo_model"


def resolve_model(name: str | None, *, environment: bool = True) -> Path:
    """Returns the folder that ``name`` means.

    ``None`` means ``COLI_MODEL`` if set (and ``environment``), else the demo model; ``demo`` is
    the demo model unless a folder of that name exists here.

    Raises:
        ModelError: there is no such folder.
    """
    said = name
    if name is None and environment:
        name = os.environ.get("COLI_MODEL") or None
        # Who sees the message may not have typed the path, nor know where it stands.
        said = f"COLI_MODEL={name}"
    if name == "":
        raise ModelError("the name of the model folder is empty")
    if name is None or (name == DEMO_NAME and not Path(name).exists()):
        folder = demo_folder()
        if not folder.is_dir():
            raise ModelError(
                "the demo model is not installed", hint="give a model folder as argument"
            )
        return folder
    try:
        path = Path(name).expanduser()
        exists = path.exists()
    except (OSError, RuntimeError) as error:
        # A name that is too long, or somebody's home who does not exist.
        reason = error.strerror if isinstance(error, OSError) else "no such home folder"
        raise ModelError(f"{said}: {reason}") from error
    if not exists:
        raise ModelError(
            f"{said}: no such model folder",
            hint="give the folder that holds config.json and the weights, or 'demo'",
        )
    # Whatever bears the name is judged by those who open it.
    has_config = os.path.lexists(path / "config.json")
    if path.is_dir() and not has_config and not any(path.glob("*.gguf")):
        raise ModelError(
            f"{said}: no config.json in this folder",
            hint="give the folder that holds config.json and the weights, or 'demo'",
        )
    path = path.resolve()
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        shown = str(path).encode(errors="backslashreplace").decode()
        # It goes into JSON, headers and the engine's messages, which all are UTF-8.
        raise ModelError(f"{shown}: the path is not UTF-8", hint="rename the folder") from error
    return path


def model_dirs() -> str | None:
    """Returns the list of further folders with shards of the model, as the engine reads it."""
    return os.environ.get("COLI_MODEL_DIRS")


def model_mirrors() -> str | None:
    """Returns the list of folders with copies of the model's files, as the engine reads it."""
    return os.environ.get("COLI_MODEL_MIRROR")


@dataclass(frozen=True)
class ModelInfo:
    """What the server and the command line know about a model.

    Attributes:
        path: its folder.
        id: the name it is served under.
        template: source of the chat template, if it has one.
        bos_token: text of the token that begins a sequence.
        eos_token: text of the token that ends one.
        temperature: default of requests.
        top_p: default of requests.
        trained_ctx: context the model was trained for.
        map_layers: real layer number of each row of the expert map, if the configuration tells.
        config: config.json.
    """

    path: Path
    id: str
    template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    temperature: float = DEFAULT_TEMPERATURE
    top_p: float = DEFAULT_TOP_P
    trained_ctx: int | None = None
    map_layers: tuple[int, ...] | None = None
    config: dict[str, Any] = field(default_factory=dict)


def read_model(path: Path, model_id: str | None = None) -> ModelInfo:
    """Reads the small files of a model folder.

    Raises:
        ModelError: one of them cannot be read.
    """
    folder = path if path.is_dir() else path.parent
    config = _read_json(folder / "config.json")
    tokenizer = _read_json(folder / "tokenizer_config.json")
    generation = _read_json(folder / "generation_config.json")
    text = config.get("text_config")
    geometry = {**config, **text} if isinstance(text, dict) else config
    temperature = _number(generation.get("temperature"), DEFAULT_TEMPERATURE, 0.0, 2.0)
    if generation.get("do_sample") is False:
        temperature = 0.0
    return ModelInfo(
        path=path,
        id=model_id or _default_id(path),
        template=_template(folder, tokenizer),
        bos_token=_token_text(tokenizer.get("bos_token")),
        eos_token=_token_text(tokenizer.get("eos_token")),
        temperature=temperature,
        top_p=_number(generation.get("top_p"), DEFAULT_TOP_P, 1e-6, 1.0),
        trained_ctx=_count(geometry.get("max_position_embeddings"))
        or _count(geometry.get("model_max_length")),
        map_layers=map_layers(geometry),
        config=config,
    )


def map_layers(config: dict[str, Any]) -> tuple[int, ...] | None:
    """Returns the layers with experts in order, then the MTP layer if the model has one.

    ``None`` when the configuration does not tell.
    """
    layers = _count(config.get("num_hidden_layers"))
    experts = next(
        (
            found
            for key in ("n_routed_experts", "num_local_experts", "num_experts")
            if (found := _count(config.get(key)))
        ),
        None,
    )
    if not layers or not experts or layers > 10_000:
        return None
    kinds = config.get("mlp_layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        sparse = [layer for layer in range(layers) if kinds[layer] == "sparse"]
    else:
        listed = config.get("mlp_only_layers")
        dense = {n for n in listed if isinstance(n, int)} if isinstance(listed, list) else set()
        first = _count(config.get("first_k_dense_replace")) or 0
        step = _count(config.get("decoder_sparse_step")) or 1
        every = _count(config.get("moe_layer_freq")) or 1
        sparse = [
            layer
            for layer in range(first, layers)
            if layer not in dense and (layer + 1) % step == 0 and layer % every == 0
        ]
    extra = _count(config.get("num_nextn_predict_layers")) or 0
    return (*sparse, *range(layers, layers + min(extra, 1)))


def _default_id(path: Path) -> str:
    if path == demo_folder():
        return "colibri-demo"
    # Control characters in a name would travel into headers and terminals.
    name = path.name if path.is_dir() else path.stem
    return "".join(c for c in name if c.isprintable()) or "model"


def _template(folder: Path, tokenizer: dict[str, Any]) -> str | None:
    text = _read_text(folder / "chat_template.jinja")
    if text is not None:
        return text
    found = tokenizer.get("chat_template")
    if isinstance(found, list):
        # Several named templates: "default" is for chat, others are for tools or retrieval.
        named = [entry for entry in found if isinstance(entry, dict)]
        found = next((e.get("template") for e in named if e.get("name") == "default"), None)
    return found if isinstance(found, str) else None


def _token_text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _open_regular(file: str, flags: int) -> int:
    # A pipe would never end its opening, a device never its content.
    opened = os.open(file, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise ModelError(f"{file}: not a regular file")
    return opened


def _read_text(file: Path) -> str | None:
    """Returns the text of a file, ``None`` if there is no such file.

    Raises:
        ModelError: it cannot be read, or is not what it should be.
    """
    try:
        with open(file, encoding="utf-8", opener=_open_regular) as opened:
            size = os.fstat(opened.fileno()).st_size
            if size > MAX_CONFIG_BYTES:
                raise ModelError(f"{file}: too large for what it should be")
            # No more than that, whatever grows meanwhile; room for it is made before reading.
            return opened.read(size)
    except FileNotFoundError:
        if file.is_symlink():
            raise ModelError(f"{file}: a link to a file that is not there") from None
        return None
    except OSError as error:
        raise ModelError(f"{file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"{file}: not UTF-8") from error


def _read_json(file: Path) -> dict[str, Any]:
    import json  # a model's files follow the standard module's rules, not those of requests

    text = _read_text(file)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file}: not valid JSON") from error
    if not isinstance(value, dict):
        raise ModelError(f"{file}: not a JSON object")
    return value


def _number(value: Any, default: float, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        return default
    return float(value)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
