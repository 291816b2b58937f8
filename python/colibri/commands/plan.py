"""``colibri plan``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from colibri import _core
from colibri.commands.console import ProgressLine, readable_bytes
from colibri.commands.doctor import (
    EXIT_FINDINGS,
    drive_shares,
    engine_report,
    finding_lines,
    measure_disk,
    on_progress,
)
from colibri.errors import ModelError
from colibri.forecast import predict, served
from colibri.models import model_dirs, resolve_model

# Time for each measurement: enough for a figure of two digits.
MEASURE_S = 1.0


def run(args: argparse.Namespace) -> int:
    """Says what of a model would be where, and how fast it may be; 1 if it does not fit."""
    folder = resolve_model(args.model)
    report = plan(folder, args)
    if args.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        print("\n".join(lines(report)))
    return EXIT_FINDINGS if is_refused(report) else 0


def is_refused(report: dict[str, Any]) -> bool:
    """Returns whether an engine would not start."""
    refused = any(finding["severity"] == "error" for finding in report["findings"])
    return refused or report["memory"] is None or not report["memory"]["fits"]


def plan(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Returns what the engine would place where, what was measured, and what follows."""
    report = engine_report(folder, args)
    memory = report["memory"]
    told = {key: report[key] for key in ("path", "findings", "memory", "machine")}
    told |= {"served": None, "disk": None, "weights": None, "prediction": None}
    if is_refused(report):
        return told
    progress = ProgressLine()
    try:
        told["disk"] = measure_disk(folder, MEASURE_S, progress)
        told["weights"] = json.loads(
            _core.measure_weights(
                str(folder), model_dirs(), args.threads, MEASURE_S, on_progress(progress, str)
            )
        )
    except _core.ColibriCoreError as error:
        raise ModelError(str(error), hint=error.hint) from error
    finally:
        progress.clear()
    told["served"] = served(memory)
    told["prediction"] = predict(memory, told["disk"]["bytes_per_second"], told["weights"])
    return told


def lines(report: dict[str, Any]) -> list[str]:
    """Returns the plan as people read it: what is where, what was measured, what follows."""
    memory = report["memory"]
    rows = placement_rows(memory) if memory is not None else []
    if report["weights"] is not None:
        rows += speed_rows(report)
    out = [report["path"], *(f"  {name + ':':<15}{text}" for name, text in rows)]
    # Notes only repeat what the plan says.
    return out + finding_lines([f for f in report["findings"] if f["severity"] != "note"])


def placement_rows(memory: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns what is where, and whether it fits, by name."""
    budget, process = memory["budget_bytes"], memory["process_bytes"]
    if budget is None:
        have = f"{readable_bytes(memory['available_bytes'])} are available, nearly all to be used"
    else:
        have = f"{readable_bytes(budget)} by --ram, {readable_bytes(process)} of it for the process"
    slots, everything = memory["slots"], memory["experts_bytes"]
    conversations = slots * memory["conversation_bytes"]
    each = (
        f"{slots} of {memory['ctx']:,} tokens" if slots > 1 else f"one of {memory['ctx']:,} tokens"
    )
    rows = [
        ("memory", have),
        ("dense", f"{readable_bytes(memory['dense_bytes'])} in memory"),
        ("conversations", f"{readable_bytes(conversations)} in memory, {each}"),
    ]
    if everything:
        rows.append(("experts", _experts(memory)))
    without = memory["dense_bytes"] + conversations + memory["working_bytes"]
    without += process if budget is not None else 0
    least = without + memory["expert_floor_bytes"]
    fits = "yes" if memory["fits"] else "no"
    fits += f"; {readable_bytes(least)} are needed at least"
    if everything:
        fits += f", {readable_bytes(without + everything)} for all experts"
    if not memory["fits"] and memory["fitting_ctx"]:
        fits += f"; --ctx {memory['fitting_ctx']} fits"
    return [*rows, ("fits", fits)]


def _experts(memory: dict[str, Any]) -> str:
    kept, everything = memory["experts_kept_bytes"], memory["experts_bytes"]
    count, all_count = memory["experts_kept"], memory["experts"]
    text = f"{count:,} of {all_count:,} in memory, {readable_bytes(kept)}"
    device, device_count = memory["device_experts_bytes"], memory["device_experts"]
    if device:
        text += f"; {device_count:,} on the device {memory['device']}, {readable_bytes(device)}"
    if count + device_count < all_count:
        text += f"; the other {readable_bytes(everything - kept - device)} are read when needed"
    return text


def speed_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns what was measured and what follows from it, by name."""
    memory, disk, weights = report["memory"], report["disk"], report["weights"]
    token = memory["token"]
    rows = []
    if memory["experts_bytes"]:
        shares = report["served"]
        text = f"{shares['uniform']:.1%} of uses from memory if all experts are taken alike"
        if shares["history"] is None:
            text += "; there is no history that tells more"
        else:
            uses = memory["history"]["uses"]
            text += f", {shares['history']:.1%} of the {uses:,} uses that are remembered"
        rows.append(("served", text))
    text = f"multiplies {readable_bytes(token['dense_bytes'])} of dense weights"
    if token["expert_bytes"]:
        text += f" and {readable_bytes(token['expert_bytes'])} of experts, which are "
        text += f"{readable_bytes(token['expert_disk_bytes'])} on disk"
    rows.append(("a token", text))
    rate = f"{readable_bytes(disk['bytes_per_second'])}/s measured, in pieces of "
    rows.append(("disk", f"{rate}{readable_bytes(disk['piece_bytes'])}{drive_shares(disk)}"))
    rates = [
        f"{readable_bytes(weights[key])}/s {name}"
        for key, name in (
            ("dense_bytes_per_second", "dense"),
            ("expert_bytes_per_second", "experts"),
        )
        if weights[key]
    ]
    text = f"{' and '.join(rates)} measured, on {weights['threads']} threads"
    rows.append(("kernels", text))
    if (found := report["prediction"]) is not None:
        least, most = found["tokens_per_second"]
        if memory["experts_bytes"]:
            low, high = (readable_bytes(count) for count in found["read_bytes_per_token"])
            rows.append(("reads", f"{low} to {high} a token"))
        rows.append(("speed", f"{least:.3g} to {most:.3g} tokens/s of one answer, predicted"))
    return rows
