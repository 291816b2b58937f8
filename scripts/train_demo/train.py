#!/usr/bin/env python3
"""Train the demo model on a CPU: a curriculum of copying dialogues, then the corpus.

    python train.py --work run --steps 4000 --decay-steps 1200
    python train.py --work run --steps 5000 --decay-steps 1200 --resume

The rate warms up, stays, and falls over the last `--decay-steps`, so one can go on at the full
rate and decide late when to stop.  `--work` gets `last.pt` (weights, both optimisers' state, step,
random state), `tokenizer.json` and `train.log`.  A batch depends on the seed and its number only,
so `--resume` takes up exactly where a run stopped; SIGTERM and Ctrl-C save first.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from data import Batches, Encoder, make_tokenizer
from export import load_folder
from model import DemoModel, ModelConfig
from optimizer import Optimizers


@dataclass
class Progress:
    """What a checkpoint keeps besides weights and optimiser state."""

    step: int = 0  # batches done
    curriculum: int = -1  # length of the curriculum in batches, once it has ended
    tokens: int = 0  # tokens of all rows, padding left out
    seconds: float = 0.0  # wall clock, over all resumed parts
    running: float = 0.0  # running mean of the loss


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for all results")
    parser.add_argument("--steps", type=int, required=True, help="batches in all")
    parser.add_argument("--until", type=int, help="save and stop at this step")
    parser.add_argument("--decay-steps", type=int, default=0, help="the last ones, rate falling")
    parser.add_argument("--resume", action="store_true", help="go on from WORK/last.pt")
    parser.add_argument("--init", type=Path, help="begin with the weights of an exported folder")
    parser.add_argument("--curriculum-loss", type=float, default=0.3, help="ends below this")
    parser.add_argument("--curriculum-steps", type=int, default=600, help="ends then at the latest")
    parser.add_argument(
        "--mixes",
        nargs="+",
        metavar="NAME:BATCH",
        help="mixes of the corpus and the batches that begin them, as in early:0 late:800"
        " (default: all four, the later ones spread over the decay)",
    )
    parser.add_argument("--batch-tokens", type=int, default=2304)
    parser.add_argument("--short", type=int, default=384, help="tokens in a usual row")
    parser.add_argument("--long", type=int, default=1024, help="tokens in a long conversation")
    parser.add_argument("--rate", type=float, default=0.02, help="Muon's learning rate")
    parser.add_argument("--adam-rate", type=float, default=3e-3)
    parser.add_argument("--balance", type=float, default=1e-2, help="rate of the router's bias")
    parser.add_argument("--auxiliary", type=float, default=1e-2, help="weight of the balance loss")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save-minutes", type=float, default=4)
    parser.add_argument("--validate-every", type=int, default=250)
    return parser.parse_args()


def mixes_of(options: argparse.Namespace) -> list[tuple[str, int]]:
    """Names of mixes and the corpus batches that begin them."""
    if options.mixes:
        pairs = (text.split(":") for text in options.mixes)
        return [(name, int(first)) for name, first in pairs]
    steps, decay = options.steps, options.decay_steps
    return [
        ("early", 0),
        ("late", steps - decay),
        ("reading", steps - decay // 2),
        ("final", steps - decay // 4),
    ]


def weighted_loss(net: DemoModel, ids: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum of cross entropies; ids and weights [B, T + 1]."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = net(ids[:, :-1])
    flat = logits.float().reshape(-1, logits.shape[-1])
    losses = F.cross_entropy(flat, ids[:, 1:].reshape(-1), reduction="none")
    return (losses * weights[:, 1:].reshape(-1)).sum()


class Workers:
    """Gradients of a batch, its rows shared among threads of one core each.

    Splitting rows costs far less than splitting every operation among the cores.  The threads'
    networks share all parameters; only what a forward pass leaves behind is their own."""

    def __init__(self, net: DemoModel, count: int) -> None:
        self.nets = [net, *(net.twin() for _ in range(count - 1))]
        self.parameters = list(net.parameters())
        self.pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))

    def gradients(self, ids: Tensor, weights: Tensor, auxiliary: float) -> float:
        """Set every parameter's gradient; returns the loss of the batch."""
        scale = 1.0 / float(weights[:, 1:].sum())
        rows = ids.shape[0]
        count = min(len(self.nets), rows)
        cuts = [rows * part // count for part in range(count + 1)]
        jobs = [
            self.pool.submit(
                self._part, net, ids[a:b], weights[a:b], scale, auxiliary * (b - a) / rows
            )
            for net, a, b in zip(self.nets, cuts, cuts[1:], strict=False)
        ]
        results = [job.result() for job in jobs]
        for parameter, *parts in zip(
            self.parameters, *(grads for _, grads in results), strict=True
        ):
            parameter.grad = parts[0]
            for part in parts[1:]:
                parameter.grad += part
        for moes in zip(*(net.moes() for net in self.nets[:count]), strict=True):
            moes[0].load = sum(moe.load for moe in moes)
        return sum(loss for loss, _ in results)

    def _part(
        self, net: DemoModel, ids: Tensor, weights: Tensor, scale: float, auxiliary: float
    ) -> tuple[float, tuple[Tensor, ...]]:
        loss = weighted_loss(net, ids, weights) * scale
        balance = sum(moe.auxiliary for moe in net.moes())
        return loss.item(), torch.autograd.grad(loss + auxiliary * balance, self.parameters)


def rate_factor(step: int, steps: int, decay_steps: int, warmup: int = 30) -> float:
    """Warm-up, a constant part, then a straight line down to 0.02."""
    warm = min(1.0, (step + 1) / warmup)
    left = steps - step
    if left >= decay_steps:
        return warm
    return warm * max(0.02, left / decay_steps)


class Trainer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        options.work.mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(1)  # the workers are the parallelism
        torch.manual_seed(options.seed)
        if options.init and not options.resume:
            shutil.copyfile(options.init / "tokenizer.json", options.work / "tokenizer.json")
        tokenizer = make_tokenizer(options.work / "tokenizer.json")
        self.batches = Batches(
            Encoder(tokenizer),
            options.seed,
            options.batch_tokens,
            options.short,
            options.long,
            mixes_of(options),
        )
        self.net = DemoModel(ModelConfig(vocab_size=tokenizer.get_vocab_size()))
        self.workers = Workers(self.net, options.threads)
        self.optimizers = Optimizers(self.net, options.rate, options.adam_rate, self.workers.pool)
        self.progress = Progress()
        self.stop = False
        self.checkpoint = options.work / "last.pt"
        if options.resume:
            self.load()
        elif options.init:
            self.net.load_state_dict(load_folder(options.init)[0].state_dict())
        total, active = self.net.counts()
        self.log(f"== {total} parameters, {active} for a token; from step {self.progress.step}")
        self.log(f"== {vars(options)}")

    def log(self, text: str) -> None:
        print(text, flush=True)
        with (self.options.work / "train.log").open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    def save(self) -> None:
        """Write beside, then rename: a stop in between leaves the old checkpoint whole."""
        beside = self.checkpoint.with_suffix(".tmp")
        state = {
            "config": self.net.config.to_dict(),
            "weights": self.net.state_dict(),
            "optimizers": self.optimizers.state(),
            "progress": asdict(self.progress),
            "random": torch.get_rng_state(),
        }
        torch.save(state, beside)
        beside.replace(self.checkpoint)

    def load(self) -> None:
        state = torch.load(self.checkpoint, weights_only=True)
        self.net.load_state_dict(state["weights"])
        self.optimizers.load(state["optimizers"])
        self.progress = Progress(**state["progress"])
        torch.set_rng_state(state["random"])

    def in_curriculum(self) -> bool:
        """Decide before each step; the decision to leave is kept for good."""
        progress, options = self.progress, self.options
        if progress.curriculum >= 0:
            return False
        learned = progress.step > 50 and progress.running < options.curriculum_loss
        if learned or progress.step >= options.curriculum_steps:
            progress.curriculum = progress.step
            progress.running = 0.0
            self.log(f"== corpus from step {progress.step}")
            return False
        return True

    def one_step(self) -> str:
        """Train on one batch; returns the name of the phase."""
        progress, options = self.progress, self.options
        if self.in_curriculum():
            phase, (ids, weights) = "curriculum", self.batches.curriculum(progress.step)
        else:
            number = progress.step - progress.curriculum
            phase, (ids, weights) = "corpus", self.batches.corpus(number)
        value = self.workers.gradients(ids, weights, options.auxiliary)
        factor = rate_factor(progress.step, options.steps, options.decay_steps)
        self.optimizers.step(factor)
        self.net.rebalance(options.balance * max(0.1, factor))
        keep = 0.95 if progress.running else 0.0
        progress.running = keep * progress.running + (1 - keep) * value
        progress.tokens += int((weights > 0).sum())
        progress.step += 1
        return phase

    def validate(self) -> None:
        self.net.eval()
        losses = defaultdict(list)
        with torch.inference_mode():
            for kind, ids, weights in self.batches.validation():
                loss = weighted_loss(self.net, ids, weights) / weights[:, 1:].sum()
                losses[kind].append(loss.item())
        self.net.train()
        means = "  ".join(f"{kind} {sum(x) / len(x):.4f}" for kind, x in losses.items())
        self.log(f"== step {self.progress.step} validation  {means}")

    def report(self, phase: str) -> None:
        progress, options = self.progress, self.options
        shares = [moe.load.float() / moe.load.float().mean() for moe in self.net.moes()]
        load = torch.stack(shares)
        factor = rate_factor(progress.step - 1, options.steps, options.decay_steps)
        self.log(
            f"{phase} step {progress.step} loss {progress.running:.3f} rate {factor:.2f}"
            f" load {load.min():.2f}-{load.max():.2f} {progress.tokens / 1e6:.2f}M tokens"
            f" {progress.seconds / 60:.1f} min"
        )

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._ask_to_stop)
        signal.signal(signal.SIGINT, self._ask_to_stop)
        options, progress = self.options, self.progress
        self.net.train()
        saved = clock = time.monotonic()
        last = min(options.steps, options.until or options.steps)
        while progress.step < last and not self.stop:
            phase = self.one_step()
            now = time.monotonic()
            progress.seconds += now - clock
            clock = now
            if progress.step % 20 == 0:
                self.report(phase)
            if progress.step % options.validate_every == 0:
                self.validate()
            if now - saved > options.save_minutes * 60:
                self.save()
                saved = now
        self.validate()
        self.save()
        self.log(f"== saved at step {progress.step}")

    def _ask_to_stop(self, *_: object) -> None:
        self.stop = True


if __name__ == "__main__":
    Trainer(arguments()).run()
