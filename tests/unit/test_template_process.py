from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from colibri.errors import ModelError, RequestError
from colibri.models import ModelInfo
from colibri.prompt import PromptRenderer

MESSAGES = [{"role": "user", "content": "hi"}]
ORDINARY = "{{ messages[0].content }}{{ bos_token }}"
# Compares two values that hold themselves, without end, once a message asks for it.
OVERFLOW = (
    "{% set a = namespace() %}{% set b = namespace() %}{% set a.x = a %}{% set b.x = b %}"
    "{% if messages[0].content == 'die' %}{{ a == b }}{% endif %}lives"
)
# Doubles a list without spending fuel.
DOUBLING = (
    "{% set ns = namespace(x=[1]) %}"
    "{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x | length }}"
)


def renderer(template: str, *, limit_s: float | None = None) -> PromptRenderer:
    made = PromptRenderer(ModelInfo(path=Path(), id="m", template=template, bos_token="<s>"))
    if limit_s is not None:
        made._process._limit_s = limit_s
    return made


def workers(parent: int) -> list[int]:
    """Processes that render for ``parent``."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name = (folder / "cmdline").read_bytes()
            status = (folder / "stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
        except OSError:
            continue
        if b"colibri._template_worker" in name and int(status[1]) == parent:
            found.append(int(folder.name))
    return found


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2]
        except OSError:
            return True
        if state.startswith("Z"):
            return True
        time.sleep(0.02)
    return False


def test_one_process_renders_again_and_again_and_ends_with_its_renderer() -> None:
    before = set(workers(os.getpid()))
    ordinary = renderer(ORDINARY)
    assert set(workers(os.getpid())) == before, "nothing starts before it is needed"
    assert ordinary.render(MESSAGES) == "hi<s>"
    started = set(workers(os.getpid())) - before
    assert len(started) == 1
    assert ordinary.render([{"role": "user", "content": "\u00e9 \U0001f426"}]) == "é \U0001f426<s>"
    assert set(workers(os.getpid())) - before == started
    del ordinary
    assert gone(started.pop())


def test_a_template_that_overflows_the_stack_ends_its_process_only() -> None:
    made = renderer(OVERFLOW)
    for _ in range(2):
        with pytest.raises(RequestError) as caught:
            made.render([{"role": "user", "content": "die"}])
        text = "the chat template ended its renderer (killed by signal 11)"
        assert (str(caught.value), caught.value.status) == (text, 400)
        assert caught.value.code == "template_failed"
        assert made.render(MESSAGES) == "lives"


def test_a_template_that_takes_all_memory_or_time_is_stopped() -> None:
    with pytest.raises(RequestError, match=r"took longer than 0\.5 s|ended its renderer"):
        renderer(DOUBLING, limit_s=0.5).render(MESSAGES)


def test_one_that_is_slow_is_told_so_and_the_next_request_works() -> None:
    made = renderer(ORDINARY, limit_s=0.3)
    assert made.render(MESSAGES) == "hi<s>"
    (worker,) = workers(os.getpid())[-1:]
    os.kill(worker, signal.SIGSTOP)
    with pytest.raises(RequestError, match=r"^the chat template took longer than 0\.3 s$"):
        made.render(MESSAGES)
    assert gone(worker)
    assert made.render(MESSAGES) == "hi<s>"


def test_one_that_was_ended_meanwhile_is_replaced() -> None:
    made = renderer(ORDINARY)
    assert made.render(MESSAGES) == "hi<s>"
    (worker,) = workers(os.getpid())[-1:]
    os.kill(worker, signal.SIGKILL)
    assert gone(worker)
    assert made.render(MESSAGES) == "hi<s>"


def test_what_the_template_refuses_leaves_the_process_alone() -> None:
    made = renderer("{{ raise_exception('roles must alternate') }}")
    started = None
    for _ in range(2):
        with pytest.raises(RequestError, match=r"refuses these messages: .*roles must alternate"):
            made.render(MESSAGES)
        now = workers(os.getpid())
        assert started in (None, now)
        started = now


async def test_the_event_loop_goes_on_and_renderings_queue() -> None:
    made = renderer(ORDINARY)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    ticking = asyncio.create_task(tick())
    texts = await asyncio.gather(
        *(made.render_async([{"role": "user", "content": str(i)}]) for i in range(20))
    )
    ticking.cancel()
    assert texts == [f"{i}<s>" for i in range(20)]
    # Starting the process alone takes many of these.
    assert ticks > 5


def test_a_template_that_cannot_be_read_is_the_models_fault() -> None:
    for template in ["{{", "{{" + "-" * 30_000 + "1}}", "half \ud800"]:
        with pytest.raises(ModelError, match=r"^chat template: "):
            renderer(template)


@pytest.mark.parametrize("how", [signal.SIGKILL, None])
def test_no_process_outlives_its_parent(how: signal.Signals | None, tmp_path: Path) -> None:
    # A module of the current folder, which may be the model's, is not what the worker imports.
    (tmp_path / "json.py").write_text("raise SystemExit(3)", encoding="utf-8")
    program = (
        "from test_template_process import *\n"
        "made = renderer(ORDINARY)\n"
        "print(json.dumps([made.render(MESSAGES), workers(os.getpid())]), flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-P", "-bb", "-W", "error", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    ) as parent:
        text, (worker,) = json.loads(parent.stdout.readline())
        assert text == "hi<s>"
        if how is not None:
            parent.send_signal(how)
        _, complaints = parent.communicate(timeout=20)
    assert complaints == ""
    assert gone(worker)
