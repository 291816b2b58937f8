"""Makes a tiny model of random weights with its reference, as tests/data/README.md tells.

    python scripts/make_fixture.py --family qwen3_moe --seed 1 FOLDER
    python scripts/make_fixture.py --family llama --preset scaled --set num_hidden_layers=2 FOLDER
    python scripts/make_fixture.py --list

Needs torch, transformers, tokenizers, safetensors, numpy and jinja2 (none of which the tests need).
The library is a black box: it makes the model, writes and reads its files, and computes in float32
on the CPU; hooks take down which experts it chose. `python scripts/check_family.py FOLDER` then
holds the engine against it.

Weights are drawn anew until no answer hangs by a hair: the same experts and the same greedy tokens
come out if the embedding is disturbed by far more than the rounding of float32, and if tokens go
through the library's cache one by one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from fixture_families import ALIASES, BASE, FAMILIES, PRESETS

torch.set_grad_enabled(False)
torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()

ROOT = Path(__file__).parents[1]
GREEDY = 48
# Rows of the vocabulary beyond the last token, as padded ones have; their logits are zero.
PADDING = 4
ATTEMPTS = 300
DISTURBANCE = 2e-5
DISTURBED = 4
# Smallest lead of the first token over the second, as a share of its logit.
LEAD = 1e-3
CACHED = 1.5e-4
TOP = 4

# --- tokenizer ---

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT = (
    "{%- for m in messages -%}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}"
)
TEXTS = ["", " a", "Hello, world!", "1234 tests\n\n", "café 你好 🙂", "<|im_end|> tail"]
CHATS = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "Two."}],
]
PROMPTS = ("def parse(self, args):", "Name the first file.")


def make_tokenizer(vocab: int) -> tokenizers.Tokenizer:
    """A byte-level BPE of as many tokens as fit, trained on the project's own pages."""
    size = vocab - PADDING - len(SPECIAL)
    if size < 256:
        raise SystemExit(f"vocab_size {vocab}: at least {256 + PADDING + len(SPECIAL)} are needed")
    tokenizer = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pages = sorted((ROOT / "docs" / "design").glob("*.md"))
    tokenizer.train_from_iterator([page.read_text(encoding="utf-8") for page in pages], trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return tokenizer


def save_tokenizer(tokenizer: tokenizers.Tokenizer, folder: Path) -> Any:
    """Writes the tokenizer's files; returns it as the library reads them."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[0],
        "clean_up_tokenization_spaces": False,
    }
    write_json(folder / "tokenizer_config.json", config)
    (folder / "chat_template.jinja").write_text(CHAT, encoding="utf-8")
    return transformers.PreTrainedTokenizerFast.from_pretrained(folder)


# --- weights ---

# Wide enough that attention, routing and logits are far from uniform.
GAINS = [
    (r"\.(q_proj|k_proj|q_b_proj)$", 1.5),
    (r"\.(kv_b_proj|v_proj)$", 1.2),
    (r"experts.*down_proj$", 1.8),
    (r"(gate_up_proj|gate_proj|up_proj|down_proj)$", 1.3),
    (r"\.(gate|router)$", 1.5),
]


def draw(model: Any, generator: torch.Generator, live: int) -> None:
    """Fills a model with random weights."""
    config = model.config

    def normal(like: torch.Tensor, deviation: float, mean: float = 0.0) -> torch.Tensor:
        return torch.randn(like.shape, generator=generator) * deviation + mean

    def uniform(like: torch.Tensor, low: float, high: float) -> torch.Tensor:
        return torch.rand(like.shape, generator=generator) * (high - low) + low

    biases = [(n, b) for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")]
    for name, values in [*model.named_parameters(), *biases]:
        stem, leaf = name.removesuffix(".weight"), name.rsplit(".", 1)[-1]
        head = 2.5 / math.sqrt(values.shape[-1])
        if leaf == "e_score_correction_bias":
            drawn = normal(values, 0.15)
        elif leaf == "A_log":
            drawn = torch.log(uniform(values, 0.05, 2.0))
        elif leaf == "dt_bias":
            drawn = uniform(values, -2.0, 1.0)
        elif leaf == "sinks":
            drawn = normal(values, 1.0)
        elif leaf.endswith("bias"):
            drawn = normal(values, 0.25)
        elif "embed_tokens" in name:
            # Small where it may be, so that another eps of the norms shows.
            drawn = normal(values, head if config.tie_word_embeddings else 0.05)
        elif "lm_head" in name:
            drawn = normal(values, head)
        elif "norm" in stem.rsplit(".", 1)[-1]:
            is_difference = bool((values == 0).all())
            is_of_heads = bool(re.search(r"(q_norm|k_norm)$", stem))
            drawn = normal(values, 0.15, (not is_difference) + 0.35 * is_of_heads)
        elif "conv1d" in name:
            drawn = normal(values, 0.6)
        else:
            # The library keeps the experts of gpt_oss as [experts, in, out].
            is_transposed = values.dim() == 3 and config.model_type == "gpt_oss"
            fan_in = values.shape[1] if is_transposed else values.shape[-1]
            gain = next((gain for pattern, gain in GAINS if re.search(pattern, stem)), 1.0)
            drawn = normal(values, gain / math.sqrt(fan_in))
            if stem.endswith("q_a_proj"):
                drawn *= 0.03
            elif stem.endswith("kv_a_proj_with_mqa"):
                drawn[: config.kv_lora_rank] *= 0.03
        values.data.copy_(drawn)
    if not config.tie_word_embeddings:
        model.lm_head.weight.data[live:] = 0.0


DTYPES = {"bf16": "bfloat16", "f32": "float32"}
KEPT_F32 = re.compile(r"(e_score_correction_bias|A_log)$")


def save_weights(model: Any, folder: Path, dtype: str) -> None:
    """Writes the tensors by the names and in the layout that the library publishes them in."""
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        tensors = load_file(Path(scratch) / "model.safetensors")
    if dtype == "bf16":
        for name, values in tensors.items():
            if not KEPT_F32.search(name):
                tensors[name] = values.to(torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def save_config(model: Any, family: str, folder: Path, dtype: str, eos: int) -> None:
    model.config.save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config |= {"model_type": family, "eos_token_id": eos, "dtype": DTYPES[dtype]}
    write_json(path, dict(sorted(config.items())))
    write_json(folder / "generation_config.json", {"eos_token_id": eos})


def load(folder: Path, library_name: str) -> Any:
    """Reads the folder as the library does, in float32."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("config.json", "model.safetensors"):
            shutil.copy(folder / name, scratch)
        path = Path(scratch) / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        write_json(path, config | {"model_type": library_name})
        model, told = transformers.AutoModelForCausalLM.from_pretrained(
            scratch,
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
        )
    wrong = {key: told[key] for key in ("missing_keys", "unexpected_keys") if told[key]}
    if wrong:
        raise SystemExit(f"the library does not read its own files: {wrong}")
    return model.eval()


# --- reference ---


class Hairy(Exception):
    """The answers of these weights hang by a hair."""


class Routing:
    """Takes down what the routers of a model choose."""

    def __init__(self, model: Any) -> None:
        self.chosen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for name, module in model.named_modules():
            layer = re.search(r"layers\.(\d+)\.", name)
            if layer and re.search(r"Top[Kk]Router$", type(module).__name__):
                module.register_forward_hook(self._hook(int(layer[1])))

    def _hook(self, layer: int) -> Any:
        def hook(_module: Any, _inputs: Any, outputs: Any) -> None:
            _logits, weights, experts = outputs
            order = experts.sort(-1)
            self.chosen[layer] = (order.values, weights.gather(1, order.indices))

        return hook

    def take(self) -> tuple[list[int], torch.Tensor, torch.Tensor]:
        """The sparse layers, and `[layers, tokens, k]` experts and weights."""
        layers = sorted(self.chosen)
        experts, weights = ([self.chosen[layer][i] for layer in layers] for i in (0, 1))
        return layers, torch.stack(experts), torch.stack(weights)


def whole(model: Any, ids: list[int]) -> torch.Tensor:
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def greedy(model: Any, ids: list[int]) -> tuple[list[int], torch.Tensor]:
    """Tokens after `ids` through the library's cache, and all logits on the way."""
    cache = transformers.DynamicCache(config=model.config)
    tokens: list[int] = []
    logits = []
    fed = ids
    for _ in range(GREEDY):
        seen = model(input_ids=torch.tensor([fed]), cache=cache, use_cache=True)
        logits.append(seen.logits[0])
        fed = [int(logits[-1][-1].argmax())]
        tokens += fed
    return tokens, torch.cat(logits)


def disturbed(model: Any, generator: torch.Generator) -> Iterator[None]:
    """Disturbs the embedding a few times, and puts it right again."""
    table = model.get_input_embeddings().weight
    kept = table.data.clone()
    for _ in range(DISTURBED):
        noise = torch.randn(table.shape, generator=generator)
        table.data.copy_(kept * (1 + DISTURBANCE * noise))
        yield
    table.data.copy_(kept)


def reference(
    model: Any, prompts: list[list[int]], live: int, generator: torch.Generator
) -> tuple[dict[str, np.ndarray], list[list[int]], list[int]]:
    """Arrays, greedy tokens and sparse layers, or `Hairy`."""
    routing = Routing(model)
    arrays: dict[str, np.ndarray] = {}
    answers: list[list[int]] = []
    layers: list[int] = []
    for i, ids in enumerate(prompts):
        tokens, cached = greedy(model, ids)
        routing.chosen.clear()
        sequence = ids + tokens
        logits = whole(model, sequence)
        if max(sequence) >= live or len(set(tokens)) < 6:
            raise Hairy("a dull continuation")
        if float((cached - logits[:-1]).abs().max()) > CACHED:
            raise Hairy("cached and whole differ")
        best = logits.topk(TOP, -1)
        lead = (best.values[:, 0] - best.values[:, 1]) / best.values[:, 0].abs()
        if float(lead[len(ids) - 1 :].min()) < LEAD:
            raise Hairy("two tokens are as likely")
        experts = None
        if routing.chosen:
            layers, experts, weights = routing.take()
            arrays[f"p{i}_experts"] = experts.to(torch.int16).numpy()
            arrays[f"p{i}_expert_weights"] = weights.float().numpy()
        for _ in disturbed(model, generator):
            again = whole(model, sequence)
            if again[len(ids) - 1 : -1].argmax(-1).tolist() != tokens:
                raise Hairy("greedy tokens change")
            if experts is not None and not torch.equal(routing.take()[1], experts):
                raise Hairy("experts change")
        if i < 2:
            arrays[f"p{i}_logits"] = logits.numpy()
        arrays[f"p{i}_top_ids"] = best.indices.to(torch.int32).numpy()
        arrays[f"p{i}_top_logits"] = best.values.numpy()
        answers.append(tokens)
    return arrays, answers, layers


# --- a folder ---


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def make(args: argparse.Namespace) -> int:
    """Writes the folder; returns how many times weights were drawn."""
    library_name = ALIASES.get(args.family, args.family)
    fields = {**BASE, **FAMILIES[library_name]}
    for preset in args.preset:
        fields |= PRESETS[preset]
    fields |= dict(args.set)
    # The row of a padding token would be zero.
    fields |= {"pad_token_id": None, "bos_token_id": None}
    tokenizer = make_tokenizer(fields["vocab_size"])
    live = tokenizer.get_vocab_size()
    eos = tokenizer.token_to_id(SPECIAL[2])
    try:
        config = transformers.CONFIG_MAPPING[library_name](**fields, eos_token_id=eos)
    except Exception as error:  # its kinds are the library's own
        reason = str(error).splitlines()[-1].strip()
        raise SystemExit(f"{args.family}: transformers refuses these values: {reason}") from None
    folder: Path = args.folder
    folder.mkdir(parents=True)
    reader = save_tokenizer(tokenizer, folder)

    def chat(messages: list[dict[str, str]]) -> tuple[str, list[int]]:
        text = reader.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return text, tokenizer.encode(text).ids

    texts = [PROMPTS[0], chat([{"role": "user", "content": PROMPTS[1]}])[0], SPECIAL[1]]
    prompts = [tokenizer.encode(text).ids for text in texts]
    hairs: dict[str, int] = {}
    for attempt in range(ATTEMPTS):
        generator = torch.Generator().manual_seed(args.seed * 100_003 + attempt)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        draw(model, generator, live)
        save_weights(model, folder, args.dtype)
        save_config(model, args.family, folder, args.dtype, eos)
        try:
            arrays, answers, layers = reference(
                load(folder, library_name), prompts, live, generator
            )
            break
        except Hairy as hair:
            hairs[str(hair)] = hairs.get(str(hair), 0) + 1
    else:
        raise SystemExit(f"{args.family}: no usable weights in {ATTEMPTS} draws: {hairs}")
    names = ("text", "chat", "single")
    told = zip(names, texts, prompts, answers, strict=True)
    texts = [*TEXTS, "".join(SPECIAL)]
    write_json(
        folder / "reference.json",
        {
            "format": 1,
            "arch": args.family,
            "seed": args.seed,
            "attempt": attempt,
            "preset": args.preset,
            "overrides": dict(args.set),
            "stored_dtype": args.dtype,
            "made_with": {
                "torch": torch.__version__.split("+")[0],
                "transformers": transformers.__version__,
            },
            "vocab_size": fields["vocab_size"],
            "tokenizer_size": live,
            "num_layers": fields["num_hidden_layers"],
            "n_greedy": GREEDY,
            "moe_layers": layers,
            "prompts": [
                {
                    "name": name,
                    "text": text,
                    "ids": ids,
                    "greedy": tokens,
                    "greedy_text": tokenizer.decode(tokens, skip_special_tokens=False),
                }
                for name, text, ids, tokens in told
            ],
            "tokenizer_cases": [
                {
                    "text": text,
                    "ids": tokenizer.encode(text).ids,
                    "ids_with_special": tokenizer.encode(text).ids,
                    "decoded": tokenizer.decode(
                        tokenizer.encode(text).ids, skip_special_tokens=False
                    ),
                }
                for text in texts
            ],
            "chat_cases": [
                {
                    "messages": messages,
                    "add_generation_prompt": True,
                    **dict(zip(("text", "ids"), chat(messages), strict=True)),
                }
                for messages in CHATS
            ],
        },
    )
    np.savez(folder / "reference.npz", **arrays)  # type: ignore[arg-type]
    return attempt + 1


def setting(text: str) -> tuple[str, Any]:
    """`KEY=JSON`, or `KEY=TEXT` where that is no JSON."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def main() -> int:
    names = sorted([*FAMILIES, *ALIASES])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, help="what to write; must not exist")
    parser.add_argument("--family", choices=names)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--preset", action="append", default=[], choices=sorted(PRESETS))
    parser.add_argument(
        *("--set", "-s"),
        action="append",
        default=[],
        type=setting,
        metavar="KEY=JSON",
        help="a value of the configuration, as hidden_size=48",
    )
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16", help="of the files")
    parser.add_argument("--list", action="store_true", help="name the families and presets")
    args = parser.parse_args()
    if args.list:
        print("families:", *names)
        print("presets:", *sorted(PRESETS))
        return 0
    if args.family is None or args.folder is None:
        parser.error("--family and a folder are needed")
    if args.folder.exists():
        parser.error(f"{args.folder} exists")
    draws = make(args)
    size = sum(file.stat().st_size for file in args.folder.iterdir())
    print(f"{args.folder}: {size / 1e3:.0f} kB, draw {draws}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
