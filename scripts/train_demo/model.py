"""The demo model's network: a small Mixture-of-Experts transformer in plain PyTorch.

Parameter names and maths are those of transformers' ``glm4_moe_lite`` (multi-head latent
attention, a sigmoid router with a correction bias, shared experts, dense first layers), so that
an exported folder loads there as it is.  Only the routed experts are named differently: while
training they are stacked into one tensor a layer (``export.py`` takes them apart).

Shapes in the comments: B rows, T positions, D hidden size, H heads, E experts, K experts a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class ModelConfig:
    """Sizes of the network; the names are those of the published configuration."""

    vocab_size: int = 2048
    hidden_size: int = 256
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    q_lora_rank: int = 128
    kv_lora_rank: int = 128
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 32
    v_head_dim: int = 64
    intermediate_size: int = 768
    moe_intermediate_size: int = 64
    n_routed_experts: int = 32
    num_experts_per_tok: int = 4
    n_shared_experts: int = 2
    first_k_dense_replace: int = 1
    routed_scaling_factor: float = 1.0
    norm_topk_prob: bool = True
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    max_position_embeddings: int = 1024

    def to_dict(self) -> dict[str, int | float | bool]:
        return asdict(self)


class RMSNorm(nn.Module):
    """Root-mean-square norm, always computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], self.weight, self.eps)


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def rope_tables(positions: int, dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding, each [positions, dim / 2]."""
    inverse = 1.0 / theta ** (torch.arange(0, dim, 2).float() / dim)
    angles = torch.outer(torch.arange(positions).float(), inverse)
    return angles.cos(), angles.sin()


def rotate_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate neighbouring pairs of the last axis; the result holds all first parts, then all
    second parts (as transformers does with ``rope_interleave``).  x is [..., T, dim]."""
    first, second = x[..., 0::2], x[..., 1::2]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


LayerCache = dict[str, Tensor]


class LatentAttention(nn.Module):
    """Multi-head latent attention: keys and values come from one small latent a position."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        heads = config.num_attention_heads
        key_dim = config.qk_nope_head_dim + config.qk_rope_head_dim
        value_dim = config.qk_nope_head_dim + config.v_head_dim
        latent = config.kv_lora_rank + config.qk_rope_head_dim
        self.q_a_proj = linear(config.hidden_size, config.q_lora_rank)
        self.q_a_layernorm = RMSNorm(config.q_lora_rank, 1e-6)
        self.q_b_proj = linear(config.q_lora_rank, heads * key_dim)
        self.kv_a_proj_with_mqa = linear(config.hidden_size, latent)
        self.kv_a_layernorm = RMSNorm(config.kv_lora_rank, 1e-6)
        self.kv_b_proj = linear(config.kv_lora_rank, heads * value_dim)
        self.o_proj = linear(heads * config.v_head_dim, config.hidden_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: LayerCache | None) -> Tensor:
        """x [B, T, D] -> [B, T, D]; a cache holds the latents and rotated keys seen before."""
        config = self.config
        rows, length, _ = x.shape
        heads = config.num_attention_heads
        query = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        query = query.view(rows, length, heads, -1).transpose(1, 2)
        q_plain, q_rope = query.split([config.qk_nope_head_dim, config.qk_rope_head_dim], -1)

        joined = self.kv_a_proj_with_mqa(x)
        latent, k_rope = joined.split([config.kv_lora_rank, config.qk_rope_head_dim], -1)
        latent = self.kv_a_layernorm(latent)
        k_rope = rotate_interleaved(k_rope[:, None], cos, sin)
        q_rope = rotate_interleaved(q_rope, cos, sin)
        if cache is not None:
            if "latent" in cache:
                latent = torch.cat([cache["latent"], latent], 1)
                k_rope = torch.cat([cache["k_rope"], k_rope], 2)
            cache["latent"], cache["k_rope"] = latent, k_rope

        seen = latent.shape[1]
        key_value = self.kv_b_proj(latent).view(rows, seen, heads, -1).transpose(1, 2)
        k_plain, value = key_value.split([config.qk_nope_head_dim, config.v_head_dim], -1)
        kind = value.dtype
        full_query = torch.cat([q_plain.to(kind), q_rope.to(kind)], -1)
        full_key = torch.cat([k_plain, k_rope.to(kind).expand(-1, heads, -1, -1)], -1)
        mixed = F.scaled_dot_product_attention(full_query, full_key, value, is_causal=length > 1)
        return self.o_proj(mixed.transpose(1, 2).reshape(rows, length, -1))


class MLP(nn.Module):
    """Gated feed-forward block (SwiGLU)."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = linear(hidden, inner)
        self.up_proj = linear(hidden, inner)
        self.down_proj = linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Router(nn.Module):
    """Router weights [E, D] and the bias [E] that only steers which experts are chosen."""

    e_score_correction_bias: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.zeros(config.n_routed_experts))


class Experts(nn.Module):
    """All routed experts of a layer, stacked: gate and up [E, 2 I, D], down [E, D, I]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        count, inner = config.n_routed_experts, config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(count, 2 * inner, config.hidden_size))
        self.down_proj = nn.Parameter(torch.empty(count, config.hidden_size, inner))


class MoE(nn.Module):
    """Top-k routed experts plus shared experts."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.experts = Experts(config)
        self.gate = Router(config)
        self.shared_experts = MLP(
            config.hidden_size, config.moe_intermediate_size * config.n_shared_experts
        )
        self.load: Tensor | None = None  # [E] tokens of the last training batch an expert got
        self.auxiliary: Tensor | None = None  # balance loss of the last training batch

    def route(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [N, D] -> scores [N, E], chosen experts [N, K], their weights [N, K] (float32)."""
        config = self.config
        with torch.autocast("cpu", enabled=False):
            scores = F.linear(x.float(), self.gate.weight).sigmoid()
            steered = scores + self.gate.e_score_correction_bias
            chosen = steered.topk(config.num_experts_per_tok, -1, sorted=False)[1]
            weights = scores.gather(1, chosen)
            if config.norm_topk_prob:
                weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
            return scores, chosen, weights * config.routed_scaling_factor

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, D] -> [B, T, D]."""
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        count = self.config.n_routed_experts
        scores, chosen, weights = self.route(x)
        order = chosen.reshape(-1).argsort(stable=True)
        load = torch.bincount(chosen.reshape(-1), minlength=count)
        if self.training:
            self.load = load
            share = load.float() / load.sum()
            probability = (scores / scores.sum(-1, keepdim=True)).mean(0)
            self.auxiliary = count * (share * probability).sum()

        token = order // self.config.num_experts_per_tok
        kind = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
        run = self._padded if self.training else self._one_by_one
        outputs = run(x.to(kind).index_select(0, token), load)
        weighted = outputs.float() * weights.reshape(-1).index_select(0, order)[:, None]
        routed = torch.zeros_like(x, dtype=torch.float32).index_add(0, token, weighted)
        return (routed + self.shared_experts(x)).view(shape)

    def _one_by_one(self, inputs: Tensor, load: Tensor) -> Tensor:
        """inputs [N K, D] sorted by expert -> outputs [N K, D]; unused experts cost nothing."""
        outputs = []
        for index, rows in enumerate(inputs.split(load.tolist())):
            if rows.shape[0]:
                gate_up = self.experts.gate_up_proj[index].to(inputs.dtype)
                gate, up = F.linear(rows, gate_up).chunk(2, -1)
                down = self.experts.down_proj[index].to(inputs.dtype)
                outputs.append(F.linear(F.silu(gate) * up, down))
        return torch.cat(outputs)

    def _padded(self, inputs: Tensor, load: Tensor) -> Tensor:
        """The same as three batched products over all experts, each padded to the largest load:
        much faster for a training batch."""
        total, width = inputs.shape
        count, room = load.shape[0], int(load.max())
        first = load.cumsum(0) - load
        expert = torch.repeat_interleave(load)
        place = expert * room + torch.arange(total) - first[expert]
        padded = inputs.new_zeros(count * room, width).index_copy(0, place, inputs)
        gate_up = self.experts.gate_up_proj.to(inputs.dtype)
        gate, up = torch.bmm(padded.view(count, room, width), gate_up.mT).chunk(2, -1)
        down = self.experts.down_proj.to(inputs.dtype)
        outputs = torch.bmm(F.silu(gate) * up, down.mT)
        return outputs.view(count * room, width).index_select(0, place)


class Layer(nn.Module):
    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        dense = index < config.first_k_dense_replace
        self.self_attn = LatentAttention(config)
        self.mlp = MLP(config.hidden_size, config.intermediate_size) if dense else MoE(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: LayerCache | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class DemoModel(nn.Module):
    """Embedding, layers, norm; the output projection is the embedding (tied)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Body(config)
        self.cos, self.sin = rope_tables(
            config.max_position_embeddings, config.qk_rope_head_dim, config.rope_theta
        )
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=_initial_scale(name, parameter.shape))

    def forward(
        self, ids: Tensor, caches: list[LayerCache] | None = None, position: int = 0
    ) -> Tensor:
        """ids [B, T], the first of them at `position` -> logits [B, T, vocabulary]."""
        end = position + ids.shape[1]
        cos, sin = self.cos[position:end], self.sin[position:end]
        x = self.model.embed_tokens(ids)
        for index, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, None if caches is None else caches[index])
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)

    def moes(self) -> list[MoE]:
        return [layer.mlp for layer in self.model.layers if isinstance(layer.mlp, MoE)]

    def twin(self) -> DemoModel:
        """A network with the same parameters and router biases, for another thread."""
        other = DemoModel(self.config)
        for mine, its in zip(self.modules(), other.modules(), strict=True):
            for name, parameter in mine.named_parameters(recurse=False):
                setattr(its, name, parameter)
            for name, buffer in mine.named_buffers(recurse=False):
                setattr(its, name, buffer)
        return other

    @torch.no_grad()
    def rebalance(self, rate: float) -> None:
        """Raise the bias of experts that got few tokens of the last batch, lower the others'."""
        for moe in self.moes():
            load = moe.load.float()
            moe.gate.e_score_correction_bias += rate * (1 - load / load.mean()).clamp(-1, 1)

    def counts(self) -> tuple[int, int]:
        """Parameters in all, and parameters used for one token."""
        config = self.config
        total = sum(parameter.numel() for parameter in self.parameters())
        expert = 3 * config.hidden_size * config.moe_intermediate_size
        idle = config.n_routed_experts - config.num_experts_per_tok
        return total, total - len(self.moes()) * expert * idle


def _initial_scale(name: str, shape: Sequence[int]) -> float:
    """Standard deviation of a matrix's initial values."""
    if "embed" in name or "gate.weight" in name:
        return 0.02
    scale = shape[-1] ** -0.5
    return 0.3 * scale if "o_proj" in name or "down_proj" in name else scale


@torch.inference_mode()
def generate(
    net: DemoModel,
    prompts: list[list[int]],
    max_tokens: int = 200,
    temperature: float = 0.6,
    top_p: float = 0.9,
    stop: Sequence[int] = (),
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """Continue prompts of one length; temperature 0 is greedy.

    An answer ends before a stop token; all end at the last position."""
    net.eval()
    caches: list[LayerCache] = [{} for _ in net.model.layers]
    step = torch.tensor(prompts)
    position = 0
    answers: list[list[int]] = [[] for _ in prompts]
    alive = set(range(len(prompts)))
    for _ in range(max_tokens):
        logits = net(step, caches, position)[:, -1].float()
        position += step.shape[1]
        tokens = pick(logits, temperature, top_p, generator)
        for row in list(alive):
            token = int(tokens[row])
            if token in stop:
                alive.discard(row)
            else:
                answers[row].append(token)
        if not alive or position >= net.config.max_position_embeddings:
            break
        step = tokens[:, None]
    return answers


def pick(
    logits: Tensor, temperature: float, top_p: float, generator: torch.Generator | None
) -> Tensor:
    """Draw a token for each row of logits [B, vocabulary] from the smallest set of mass top_p."""
    if temperature <= 0:
        return logits.argmax(-1)
    probability, index = (logits / temperature).softmax(-1).sort(descending=True)
    probability[probability.cumsum(-1) - probability >= top_p] = 0
    place = torch.multinomial(probability, 1, generator=generator)
    return index.gather(1, place)[:, 0]
