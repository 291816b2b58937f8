"""Ways to ask a model that need no PyTorch: colibri's engine, any OpenAI-compatible server."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import NamedTuple, Protocol

from markers import START

STOP = ["<|endoftext|>", "<|user|>", "<|observation|>"]


class Prompt(NamedTuple):
    """Earlier turns (question, answer), the question to answer, and the most tokens to say."""

    history: list[tuple[str, str]]
    question: str
    max_tokens: int


class Backend(Protocol):
    """Something that answers prompts."""

    def answer(
        self, prompts: list[Prompt], temperature: float, top_p: float, seed: int
    ) -> list[str]:
        """The answers, in the order of the prompts."""


def render(prompt: Prompt) -> str:
    """The text the model sees, as its chat template writes it."""
    turns = "".join(f"<|user|>\n{q}<|assistant|>\n{a}" for q, a in prompt.history)
    return f"{START}{turns}<|user|>\n{prompt.question}<|assistant|>\n"


class EngineBackend:
    """colibri's engine inside this process."""

    def __init__(self, folder: Path) -> None:
        import colibri

        self.model = colibri.Model(str(folder))

    def answer(
        self, prompts: list[Prompt], temperature: float, top_p: float, seed: int
    ) -> list[str]:
        """See `Backend`."""
        answers = []
        for number, prompt in enumerate(prompts):
            tokens = self.model.generate(
                render(prompt),
                max_tokens=prompt.max_tokens,
                temperature=temperature,
                top_p=top_p,
                seed=seed + number,
                stop=STOP,
            )
            answers.append("".join(token.text for token in tokens).strip())
        return answers


class ServerBackend:
    """An OpenAI-compatible server, by its /v1 address."""

    def __init__(self, address: str, model: str, key: str | None = None) -> None:
        self.address, self.model, self.key = address.rstrip("/"), model, key

    def answer(
        self, prompts: list[Prompt], temperature: float, top_p: float, seed: int
    ) -> list[str]:
        """See `Backend`."""
        return [
            self._ask(prompt, temperature, top_p, seed + number)
            for number, prompt in enumerate(prompts)
        ]

    def _ask(self, prompt: Prompt, temperature: float, top_p: float, seed: int) -> str:
        messages = []
        for question, answer in prompt.history:
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": answer})
        messages.append({"role": "user", "content": prompt.question})
        body = {
            "model": self.model,
            "messages": messages,
            "max_tokens": prompt.max_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "seed": seed,
        }
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        request = urllib.request.Request(
            f"{self.address}/chat/completions", json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=300) as reply:
            told = json.load(reply)
        return (told["choices"][0]["message"]["content"] or "").strip()
