"""What the server costs by itself: many connections that stream from a scripted engine, as JSON.

    python benchmarks/gateway.py [--streams 100] [--rounds 5] [--profile] [--out FILE]

Three loads, turn by turn. "flood": the engine writes as fast as it can, so that tokens of a stream
come in bunches. "paced": every stream gets one token a step, so that every token is an event and a
write of its own; 200 steps a second are 20,000 tokens. "calm": the same with 50 steps, where the
latency says something. All connections stream at once: the scripted engine has as many slots as
there are connections, where ours has 16 at most.

The figure is tokens per second of the server's own processor time, which is what one core streams
when it does nothing else. The server is kept on one core, the clients and the engine on the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import os
import pstats
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from colibri.engine_process import EngineConfig
from colibri.models import read_model, resolve_model
from colibri.tornado_app import ServeSettings, bind, serve
from http_load import stream_all
from measure import spread, write_report

SCRIPTED_ENGINE = Path(__file__).with_name("scripted_engine.py")
PROFILE_LINES = 25
# Of each answer: the role, the reason of its end, the figures, [DONE].
OTHER_EVENTS = 4
# Steps a second, 0 for no pause between them, and tokens of each answer.
LOADS = {"flood": (0, 1000), "paced": (200, 800), "calm": (50, 200)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the server over a scripted engine.")
    parser.add_argument("--streams", type=int, default=100, help="connections that stream at once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="print where the server's time goes")
    parser.add_argument("--out", type=Path, help="write the JSON there instead of stdout")
    parser.add_argument("--serve", type=int, metavar="PACE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        run_server(args.streams, args.serve, profile=args.profile)
        return
    server_core, *other_cores = sorted(os.sched_getaffinity(0))
    if other_cores:
        os.sched_setaffinity(0, other_cores)
    servers = {
        name: Server(server_core, args, pace, tokens) for name, (pace, tokens) in LOADS.items()
    }
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
    for i in range(-1, args.rounds):
        for name, server in servers.items():
            figures = server.round()
            print(f"round {i + 1} of {args.rounds}, {name}: {figures}", file=sys.stderr)
            # The first one warms up.
            if i >= 0:
                rounds[name].append(figures)
    for server in servers.values():
        server.stop()
    os.sched_setaffinity(0, [server_core, *other_cores])
    report: dict[str, Any] = {
        "what": "server over a scripted engine, all connections streaming",
        "streams": args.streams,
    }
    for name, (pace, tokens) in LOADS.items():
        report[name] = {"steps_per_second": pace or None, "tokens_per_stream": tokens}
        for key in rounds[name][0]:
            report[name][key] = spread((figures[key] for figures in rounds[name]), 3)
    write_report(report, args.out)


class Server:
    """A server process with its engine, on a core of its own."""

    def __init__(self, core: int, args: argparse.Namespace, pace: int, tokens: int) -> None:
        command = [sys.executable, __file__, "--serve", str(pace), "--streams", str(args.streams)]
        if args.profile:
            command.append("--profile")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8")
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        # Only now, and only it: its engine stays where it was started.
        os.sched_setaffinity(self.process.pid, [core])
        self.streams, self.tokens, self.timed = args.streams, tokens, pace > 0

    def round(self) -> dict[str, float]:
        bodies = [
            {
                "messages": [{"role": "user", "content": f"Tell story {i}."}],
                "max_tokens": self.tokens,
                "stream": True,
            }
            for i in range(self.streams)
        ]
        path = "/v1/chat/completions"
        load = stream_all(self.port, self.process.pid, path, bodies, timed=self.timed)
        texts = load.events - OTHER_EVENTS * self.streams
        tokens = self.streams * self.tokens
        figures = {
            "tokens_per_wall_s": round(tokens / load.wall_s),
            "tokens_per_cpu_s": round(tokens / load.cpu_s),
            "cpu_us_per_token": round(1e6 * load.cpu_s / tokens, 2),
            "cpu_share": round(load.cpu_s / load.wall_s, 3),
            "events_per_token": round(texts / tokens, 3),
        }
        if self.timed:
            cuts = statistics.quantiles(load.latencies_us, n=100)
            figures |= {
                "latency_p50_ms": round(cuts[49] / 1000, 3),
                "latency_p99_ms": round(cuts[98] / 1000, 3),
            }
        return figures

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def run_server(streams: int, pace: int, *, profile: bool) -> None:
    """``colibri serve`` without its limit of 16 slots; prints the port once it is ready."""
    model = read_model(resolve_model(None))
    settings = ServeSettings(port=0)
    sockets = bind(settings)
    engine = (sys.executable, "-S", str(SCRIPTED_ENGINE), str(streams), str(pace))
    profiler = cProfile.Profile()

    def ready() -> None:
        print(sockets[0].getsockname()[1], flush=True)
        if profile:
            profiler.enable()

    asyncio.run(
        serve(
            settings,
            EngineConfig(model=model.path, slots=streams, command=engine),
            model,
            sockets,
            version="benchmark",
            on_log=print,
            on_state=lambda _: None,
            on_ready=ready,
        )
    )
    if profile:
        profiler.disable()
        print(f"profile at {pace} steps a second (0: flood)", file=sys.stderr)
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(PROFILE_LINES)


if __name__ == "__main__":
    main()
