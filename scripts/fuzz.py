"""Builds the fuzz targets of rust/fuzz with the stable compiler and runs each for some seconds.

As many run at once as there are cores. Every run works on a copy of the committed corpus, so the
tree stays as it is. What is found is written below target/fuzz/findings, and the exit code is 1
then.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRATE = ROOT / "rust" / "fuzz"
BUILD = ROOT / "target" / "fuzz"


@dataclass(frozen=True)
class Target:
    """How a target is fuzzed.

    Attributes:
        longest: input in bytes: beyond the longest header, what is tokenised at once, or any seed.
        words: the dictionary.
    """

    longest: int
    words: str


TARGETS = {
    "config": Target(4096, "files.dict"),
    "frames": Target(5120, "wire.dict"),
    "legacy": Target(5120, "wire.dict"),
    "safetensors": Target(8192, "files.dict"),
    "session": Target(20480, "wire.dict"),
    "tokenizer": Target(8192, "files.dict"),
}
UPDATE = "cargo update --workspace --manifest-path rust/fuzz/Cargo.toml"
# What cargo-fuzz passes with `--sanitizer none`, and nothing that needs a nightly compiler.
COVERAGE = [
    "--cfg",
    "fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
]
# An input that takes longer, in seconds, or more memory is a finding.
LIMITS = ["-timeout=20", "-rss_limit_mb=2048"]
CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Outcome:
    """What one process of the fuzzer said."""

    code: int
    log: str

    def figure(self, pattern: str) -> int:
        """Returns the last number that the pattern finds, 0 for none."""
        found = re.findall(pattern, self.log)
        return int(found[-1]) if found else 0


def host() -> str:
    """Returns the target triple of this machine."""
    said = subprocess.run(
        ["rustc", "-vV"], stdout=subprocess.PIPE, encoding="utf-8", check=True
    ).stdout
    return re.search(r"^host: (.+)$", said, re.MULTILINE)[1]


def build(targets: list[str]) -> dict[str, Path]:
    """Returns the programs by target."""
    triple = host()
    # With a target given, the flags leave build scripts and procedural macros alone.
    command = ["cargo", "build", "--quiet", "--locked", "--release", "--target", triple]
    command += ["--manifest-path", str(CRATE / "Cargo.toml"), "--target-dir", str(BUILD)]
    for target in targets:
        command += ["--bin", target]
    flags = {"CARGO_ENCODED_RUSTFLAGS": "\x1f".join(COVERAGE)}
    subprocess.run(command, env=os.environ | flags, check=True)
    return {target: BUILD / triple / "release" / target for target in targets}


def fuzz(program: Path, target: str, seconds: int, folder: Path) -> Outcome:
    """Runs one process on the corpus in the folder, which processes of a target share."""
    findings = BUILD / "findings" / target
    findings.mkdir(parents=True, exist_ok=True)
    settings = TARGETS[target]
    command = [
        str(program),
        str(folder),
        f"-max_total_time={seconds}",
        f"-max_len={settings.longest}",
        f"-dict={CRATE / settings.words}",
        f"-artifact_prefix={findings}{os.sep}",
        "-print_final_stats=1",
        # The target's own words; a finding is run again with them.
        "-close_fd_mask=2",
        *LIMITS,
    ]
    # Targets that read files write them for every input.
    with tempfile.TemporaryDirectory(prefix="fuzz-") as files:
        environment = os.environ | {"TMPDIR": files}
        done = subprocess.run(
            command,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            cwd=files,
            env=environment,
            check=False,
        )
    return Outcome(done.returncode, done.stderr)


def fuzz_all(programs: dict[str, Path], seconds: int, jobs: int) -> dict[str, list[Outcome]]:
    """Runs ``jobs`` processes for each target, as many at once as there are cores."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name, ThreadPoolExecutor(CORES) as pool:
        running: dict[str, list[Future[Outcome]]] = {}
        for target, program in programs.items():
            folder = Path(name) / target
            shutil.copytree(CRATE / "corpus" / target, folder)
            running[target] = [
                pool.submit(fuzz, program, target, seconds, folder) for _ in range(jobs)
            ]
        return {target: [one.result() for one in each] for target, each in running.items()}


def report(target: str, program: Path, seconds: int, outcomes: list[Outcome]) -> bool:
    """Prints the figures, and how to see a finding again; true if there is none."""
    runs = sum(outcome.figure(r"number_of_executed_units: (\d+)") for outcome in outcomes)
    coverage, features = (
        max(outcome.figure(rf"\b{what}: (\d+)") for outcome in outcomes) for what in ("cov", "ft")
    )
    print(
        f"{target}: {runs} executions, {runs / seconds:.0f}/s, cov {coverage}, ft {features}",
        flush=True,
    )
    failed = [outcome for outcome in outcomes if outcome.code != 0]
    for outcome in failed:
        written = re.search(r"Test unit written to (.+)", outcome.log)
        if written is None:
            print(outcome.log[-4000:], file=sys.stderr)
            print(f"error: {target} ended with code {outcome.code}", file=sys.stderr)
            continue
        again = [str(program), *LIMITS, written[1]]
        subprocess.run(again, check=False)
        print(f"error: {target} fails on {written[1]}", file=sys.stderr)
        print(f"hint: to see it again: {' '.join(again)}", file=sys.stderr)
    return not failed


def main() -> int:
    """Builds and runs what the command line asks for."""
    parser = argparse.ArgumentParser(description="fuzzes the wire and model files")
    parser.add_argument(
        "--seconds", type=int, default=40, metavar="N", help="time for each process (default: 40)"
    )
    parser.add_argument("--target", choices=TARGETS, help="only this one (default: all)")
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="processes for each target (default: 1)"
    )
    args = parser.parse_args()
    if args.seconds < 1 or args.jobs < 1:
        parser.error("--seconds and --jobs must be at least 1")
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        print(
            f"error: a C++ compiler is needed to build libFuzzer and `{compiler}` was not found",
            file=sys.stderr,
        )
        print("hint: install g++ or clang, or name another one in CXX", file=sys.stderr)
        return 1
    try:
        programs = build([args.target] if args.target else list(TARGETS))
    except subprocess.CalledProcessError as error:
        print(f"error: the targets could not be built (code {error.returncode})", file=sys.stderr)
        print(f"hint: if the crate's dependencies changed: {UPDATE}", file=sys.stderr)
        return 1
    sound = True
    for target, outcomes in fuzz_all(programs, args.seconds, args.jobs).items():
        sound &= report(target, programs[target], args.seconds, outcomes)
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
