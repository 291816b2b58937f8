"""``colibri doctor``."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from colibri import _core
from colibri.commands.console import ProgressLine, readable_bytes
from colibri.engine_process import EngineConfig
from colibri.errors import ModelError, UsageError
from colibri.models import model_dirs, model_mirrors, read_model, resolve_model
from colibri.prompt import PromptRenderer
from colibri.streams import one_line

# Long enough to level out, short enough to wait for.
DISK_S = 2.0
EXIT_FINDINGS = 1
# What COLIBRI_KV may be.
KV_NAMES = ("f32", "bf16")


def run(args: argparse.Namespace) -> int:
    """Looks for everything that is in the way of running a model; 1 if there is something."""
    folder = resolve_model(args.model)
    report = examine(folder, args)
    if args.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        print("\n".join(map(one_line, lines(report))))
    refused = any(finding["severity"] == "error" for finding in report["findings"])
    return EXIT_FINDINGS if refused else 0


def examine(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Returns what the engine finds, with what only this package reads."""
    report = engine_report(folder, args)
    findings = report["findings"]
    findings += template_findings(folder)
    report |= {"disk": None, "deep": args.deep}
    if report["files"] is not None:
        progress = ProgressLine()
        try:
            report["disk"] = measure_disk(folder, DISK_S, progress)
            if args.deep:
                tell = on_progress(progress, readable_bytes)
                found = _core.check_contents(str(folder), model_dirs(), tell)
                told = {finding["text"] for finding in findings}
                findings += [f for f in json.loads(found) if f["text"] not in told]
        except _core.ColibriCoreError as error:
            findings.append(_finding("error", str(error), error.hint))
        finally:
            progress.clear()
    order = ("error", "warning", "note")
    findings.sort(key=lambda finding: order.index(finding["severity"]))
    return report


def engine_report(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Returns what the engine finds that these arguments start."""
    device = os.environ.get("COLIBRI_DEVICE") or None
    kv = os.environ.get("COLIBRI_KV") or None
    if kv not in (None, *KV_NAMES):
        raise UsageError(f"COLIBRI_KV: {kv!r} is not known", hint=f"use {' or '.join(KV_NAMES)}")
    try:
        told = _core.examine(
            str(folder),
            model_dirs(),
            ram_gb=args.ram,
            ctx=args.ctx,
            slots=args.slots,
            threads=args.threads,
            state_dir=EngineConfig(folder).environment().get("COLIBRI_STATE_DIR"),
            mirrors=model_mirrors(),
            vram_gb=args.vram,
            device=device,
            kv=kv,
            mtp=os.environ.get("COLIBRI_SPECULATE") != "off",
        )
    except ValueError:
        hint = "the only device there is so far is host"
        raise UsageError(f"COLIBRI_DEVICE: there is no device {device!r}", hint=hint) from None
    report: dict[str, Any] = json.loads(told)
    return report


def measure_disk(folder: Path, seconds: float, progress: ProgressLine) -> dict[str, Any]:
    """Returns how fast the files are read.

    Raises:
        ColibriCoreError: they cannot be.
    """
    measured: dict[str, Any] = json.loads(
        _core.measure_disk(
            str(folder),
            model_dirs(),
            seconds,
            on_progress(progress, str, " ms"),
            mirrors=model_mirrors(),
        )
    )
    return measured


def template_findings(folder: Path) -> list[dict[str, Any]]:
    """Returns what is wrong with the files that the server reads itself."""
    try:
        model = read_model(folder)
        if model.template is None:
            hint = "put the model's chat_template.jinja into the folder"
            return [_finding("warning", f"{folder}: no chat template, so it cannot chat", hint)]
    except ModelError as error:
        return [_finding("error", str(error), error.hint)]
    try:
        PromptRenderer(model)
    except ModelError as error:
        return [_finding("warning", f"{folder}: {error}", "chat needs a template that works")]
    return []


def _finding(severity: str, text: str, hint: str | None) -> dict[str, Any]:
    return {"severity": severity, "text": text, "hint": hint}


def on_progress(
    progress: ProgressLine, unit: Callable[[int], str], note: str = ""
) -> Callable[[str, int, int], None]:
    """Returns what shows how far a measurement is."""

    def update(stage: str, done: int, total: int) -> None:
        progress.update(stage, done, total, unit, note)

    return update


def lines(report: dict[str, Any]) -> list[str]:
    """Returns the report as people read it: figures first, then one line for each finding."""
    out = [report["path"]]
    if files := report["files"]:
        size = readable_bytes(files["dense_bytes"] + files["expert_bytes"])
        out.append(f"  files:   {files['shards']:,} with {files['tensors']:,} tensors, {size}")
    if memory := report["memory"]:
        out += [f"  memory:  {line}" for line in memory_lines(memory)]
    if disk := report["disk"]:
        out += [f"  disk:    {line}" for line in disk_lines(disk, memory)]
    machine = report["machine"]
    threads, allowed = machine["threads"], machine["threads_allowed"]
    out.append(f"  machine: {machine['cpu']}, {machine['isa']}, {threads} of {allowed} threads")
    out += finding_lines(report["findings"])
    if not any(finding["severity"] == "error" for finding in report["findings"]):
        out.append("nothing is in the way of running this model")
    return out


def finding_lines(findings: list[dict[str, Any]]) -> list[str]:
    """Returns a line for each finding."""
    hints = [f"; {found['hint']}" if found["hint"] else "" for found in findings]
    return [
        f"{found['severity']}: {found['text']}{hint}"
        for found, hint in zip(findings, hints, strict=True)
    ]


def memory_lines(memory: dict[str, Any]) -> list[str]:
    """Returns what there is, and what the model takes of it."""
    limit = memory["cgroup_limit_bytes"]
    there = f"{readable_bytes(memory['available_bytes'])} of "
    there += f"{readable_bytes(memory['total_bytes'])} are available"
    there += f", limited to {readable_bytes(limit)} by the cgroup" if limit else ""
    # The process is a part of what --ram bounds, not of what is available beside it.
    process = memory["process_bytes"] if memory["budget_bytes"] is not None else 0
    needs = f"{readable_bytes(process + memory['needed_bytes'])} are needed: "
    needs += f"{readable_bytes(process)} for the process, " if process else ""
    needs += f"{readable_bytes(memory['dense_bytes'])} dense, "
    slots = memory["slots"]
    needs += f"{readable_bytes(slots * memory['conversation_bytes'])} for "
    needs += "a conversation" if slots == 1 else f"{slots} conversations"
    needs += f" of {memory['ctx']:,} tokens, {readable_bytes(memory['working_bytes'])} to work with"
    if not memory["experts_bytes"]:
        return [there, needs]
    needs += f", {readable_bytes(memory['expert_floor_bytes'])} for the experts of one token"
    kept, everything = memory["experts_kept_bytes"], memory["experts_bytes"]
    room = f"there is room for {readable_bytes(kept)} of {readable_bytes(everything)} of experts"
    if on_device := memory["device_experts_bytes"]:
        room += f", and for {readable_bytes(on_device)} on the device"
    return [there, needs, room]


def drive_shares(disk: dict[str, Any]) -> str:
    """Returns what came from which drive, if there were several."""
    total = sum(drive["bytes"] for drive in disk["drives"])
    if not total:
        return ""
    told = [
        f"{drive['bytes'] / total:.0%} from "
        + (f"mirror {drive['mirror']}" if drive["mirror"] else "the model's folder")
        for drive in disk["drives"]
    ]
    return f"; {', '.join(told)}"


def disk_lines(disk: dict[str, Any], memory: dict[str, Any] | None) -> list[str]:
    """Returns how fast the files are read, and what that means for a token."""
    rate = disk["bytes_per_second"]
    speed = f"{readable_bytes(rate)}/s, in pieces of {readable_bytes(disk['piece_bytes'])} on "
    speed += f"{disk['threads']} threads{drive_shares(disk)}"
    per_token = memory["expert_read_bytes_per_token"] if memory else 0
    if not per_token or not rate:
        return [speed]
    worst = f"a token none of whose experts are in memory reads {readable_bytes(per_token)}: "
    return [speed, f"{worst}{per_token / rate:.2g} s"]
