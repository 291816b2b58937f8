"""Muon for matrices, AdamW for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor

import torch
from torch import Tensor, nn

from model import DemoModel

Item = tuple[nn.Parameter, Tensor]  # a parameter and its update [n, out, in]


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made nearly orthogonal (five Newton-Schulz steps in bfloat16).

    Takes matrices [out, in] and stacks of matrices [E, out, in].  A stack with `2 * inner` output
    rows holds the gate and up matrices of an expert, which are treated as two matrices.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        inner: int,
        pool: Executor,
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "inner": inner}
        super().__init__(parameters, defaults)
        self.pool = pool

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[Item]] = {}
            for parameter in group["params"]:
                update = self._with_momentum(parameter, group["momentum"])
                update = update[None] if update.dim() == 2 else update
                if parameter.dim() == 3 and parameter.shape[1] == 2 * group["inner"]:
                    update = update.reshape(-1, group["inner"], update.shape[2])
                by_shape.setdefault(tuple(update.shape[1:]), []).append((parameter, update))
            jobs = [
                self.pool.submit(self._apply, part, group["lr"], group["weight_decay"])
                for items in by_shape.values()
                for part in _parts(items)
            ]
            for job in jobs:
                job.result()

    def _with_momentum(self, parameter: nn.Parameter, momentum: float) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(state["momentum"], momentum)

    @staticmethod
    @torch.no_grad()
    def _apply(items: list[Item], lr: float, weight_decay: float) -> None:
        """Orthogonalise updates [n, out, in] of one shape together and add them."""
        updates = orthogonal(torch.cat([update for _, update in items]))
        rows, columns = updates.shape[1:]
        scale = max(1.0, rows / columns) ** 0.5
        first = 0
        for parameter, update in items:
            last = first + update.shape[0]
            parameter.mul_(1 - lr * weight_decay)
            parameter.add_(updates[first:last].reshape(parameter.shape), alpha=-lr * scale)
            first = last


def _parts(items: list[Item], size: int = 64) -> Iterator[list[Item]]:
    """Items in lists of about `size` matrices, one job each."""
    part: list[Item] = []
    for item in items:
        part.append(item)
        if sum(update.shape[0] for _, update in part) >= size:
            yield part
            part = []
    if part:
        yield part


def orthogonal(stack: Tensor) -> Tensor:
    """Matrices [n, out, in] with all singular values moved close to 1."""
    tall = stack.shape[1] > stack.shape[2]
    x = stack.mT if tall else stack
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).to(torch.bfloat16)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * (gram @ gram)) @ x
    return (x.mT if tall else x).float()


class Optimizers:
    """Both optimisers with one rate factor; the router gets a fifth of AdamW's rate."""

    def __init__(self, net: DemoModel, muon_rate: float, adam_rate: float, pool: Executor) -> None:
        named = list(net.named_parameters())
        gates = [p for name, p in named if "gate.weight" in name]
        matrices = [
            p for n, p in named if p.dim() >= 2 and "embed" not in n and "gate.weight" not in n
        ]
        taken = {id(p) for p in gates + matrices}
        self.rest = [p for _, p in named if id(p) not in taken]
        adam_groups = [{"params": self.rest}, {"params": gates, "lr": adam_rate / 5}]
        self.all: list[torch.optim.Optimizer] = [
            Muon(matrices, net.config.moe_intermediate_size, pool, lr=muon_rate),
            torch.optim.AdamW(adam_groups, lr=adam_rate, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self.rates = [[group["lr"] for group in one.param_groups] for one in self.all]

    def step(self, factor: float) -> None:
        """Clip the non-matrix gradients, update everything with rate * factor, clear."""
        nn.utils.clip_grad_norm_(self.rest, 1.0)
        for one, rates in zip(self.all, self.rates, strict=True):
            for group, rate in zip(one.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            one.step()
            one.zero_grad(set_to_none=True)

    def state(self) -> list[dict]:
        return [one.state_dict() for one in self.all]

    def load(self, states: list[dict]) -> None:
        for one, state in zip(self.all, states, strict=True):
            one.load_state_dict(state)
