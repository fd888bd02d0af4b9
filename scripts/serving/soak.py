#!/usr/bin/env python3
"""Soak test of `shoal serve`: many clients, also broken and slow clients, against a server on two uneven CPU devices.

  scripts/serving/soak.py --minutes 30 --clients 32
  scripts/serving/soak.py --minutes 0.5                 # a short version

Before the test, the server answers some greedy and seeded requests one at a time. During the test, clients repeat these
requests as answers and as streams, cancel streams, disconnect, read and send slowly, and send malformed JSON, wrong
fields, oversized bodies and long prompts. The test fails if

- an answer differs from the answer of the single run, before or after the test
- a request gets no answer, or a status that the documentation does not name for it
- the memory of the server grows: the mean of the last third exceeds the mean of the second third by more than 5 %
- requests run or wait after the end
- the server exits, or its log has a traceback

Prints a line per minute. All connections use 127.0.0.1. Exits with 1 after a failure."""

import argparse
import asyncio
import json
import os
import pathlib
import shutil
import statistics
import sys
import time

import http_client
from server import MODEL, PROGRAM, ROOT, Server, ServingError, check_program, say
from soak_clients import ACTIONS, Client, State
from soak_requests import answer_all, make_known

CONTEXT = 8192
MOST_BODY = 1 << 20  # bytes
SAMPLE_SECONDS = 2.0
END_SECONDS = 30  # until the last requests of disconnected clients have ended
MOST_GROWTH = 1.05
SHORTEST_MEMORY_TEST = 180  # seconds; caches still fill in the first minutes
FLAGS = [
    "-c",
    str(CONTEXT),
    "-np",
    "16",
    "--max-queue",
    "16",
    "--max-body",
    "1",
    "--request-timeout",
    "200",
    "--alias",
    "kjv",
]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--minutes", type=float, default=30, help="duration (30)")
    add("--clients", type=int, default=32, help="number of clients (32)")
    add("--seed", type=int, default=int(time.time()), help="seed of the clients (default: the time)")
    add("-m", dest="model", type=pathlib.Path, default=MODEL, metavar="FILE", help="GGUF file of the model")
    add("--devices", default="CPU0,CPU1", help="devices of the server (CPU0,CPU1)")
    add("--shares", default="3,1", help="shares of the devices (3,1)")
    add(
        "--shoal",
        type=pathlib.Path,
        default=pathlib.Path(os.environ.get("SHOAL_PROGRAM", PROGRAM)),
        metavar="PATH",
        help="the program (SHOAL_PROGRAM, or build/release/bin/shoal)",
    )
    add("--port", type=int, default=0, help="port of the server (default: any free port)")
    add(
        "--log",
        type=pathlib.Path,
        default=ROOT / "build/suites/reports/soak-server.log",
        metavar="FILE",
        help="log of the server",
    )
    add("-o", dest="output", type=pathlib.Path, metavar="FILE", help="JSON file with the results")
    return parser.parse_args()


class Soak:
    def __init__(self, arguments: argparse.Namespace, server: Server) -> None:
        self.arguments = arguments
        self.server = server
        self.memory: list[int] = []
        self.problems: list[str] = []

    async def run(self) -> None:
        begin = time.monotonic()
        known = await answer_all(self.server.port, make_known(self.arguments.seed))
        say(f"soak: {len(known)} single runs took {time.monotonic() - begin:.1f} s; seed {self.arguments.seed}")
        self.state = State(self.server.port, known, MOST_BODY, CONTEXT, time.monotonic() + 60 * self.arguments.minutes)
        clients = [Client(self.state, self.arguments.seed * 1000 + number) for number in range(self.arguments.clients)]
        watch = asyncio.create_task(self.watch())
        await asyncio.gather(*(client.run() for client in clients))
        watch.cancel()
        self.problems += self.state.problems
        await self.check_idle()
        if await answer_all(self.server.port, known) != known:
            self.problems.append("single runs after the soak differ from single runs before it")
        self.check_memory()
        self.problems += filter(None, [self.server.problem()])

    async def watch(self) -> None:
        """Samples the memory, and prints a line per minute."""
        begin, printed = time.monotonic(), 0
        while True:
            self.server.check()
            self.memory.append(self.server.resident_bytes())
            minute = int((time.monotonic() - begin) // 60)
            if minute > printed:
                printed = minute
                say(self.line(f"minute {minute}"))
            await asyncio.sleep(SAMPLE_SECONDS)

    def line(self, name: str) -> str:
        counts = self.state.counts
        statuses = ", ".join(
            f"{key.removeprefix('status ')}: {counts[key]}" for key in sorted(counts) if key.startswith("status")
        )
        actions = sum(counts[action.__name__] for action in ACTIONS)
        return (
            f"soak: {name}: {actions} actions; answers by status: {statuses}; {counts['problems']} problems; slowest "
            f"{self.state.slowest:.1f} s; memory {self.memory[-1] / 2**20:.1f} MiB"
        )

    async def check_idle(self) -> None:
        """Requests of clients that disconnected end soon."""
        names = ("llamacpp:requests_processing", "llamacpp:requests_deferred")
        deadline = time.monotonic() + END_SECONDS
        while True:
            values = await asyncio.to_thread(self.server.metrics)
            if not any(values[name] for name in names):
                break
            if time.monotonic() > deadline:
                running, waiting = (values[name] for name in names)
                self.problems.append(
                    f"{running:g} requests run and {waiting:g} wait {END_SECONDS} s after the last client"
                )
                return
            await asyncio.sleep(0.5)
        health = await http_client.get(self.server.port, "/health")
        if health.status != 200:
            self.problems.append(f"/health has status {health.status} after the soak")

    def check_memory(self) -> None:
        third = len(self.memory) // 3
        if 60 * self.arguments.minutes < SHORTEST_MEMORY_TEST or not third:
            return
        before, after = statistics.mean(self.memory[third : 2 * third]), statistics.mean(self.memory[2 * third :])
        say(f"soak: memory: {before / 2**20:.1f} MiB in the second third, {after / 2**20:.1f} MiB in the last third")
        if after > before * MOST_GROWTH:
            self.problems.append(f"the memory grows from {before / 2**20:.1f} MiB to {after / 2**20:.1f} MiB")

    def report(self) -> dict[str, object]:
        return {
            "minutes": self.arguments.minutes,
            "clients": self.arguments.clients,
            "seed": self.arguments.seed,
            "counts": dict(sorted(self.state.counts.items())),
            "slowest_seconds": self.state.slowest,
            "memory_mib": [round(value / 2**20, 1) for value in self.memory],
            "problems": self.problems,
        }


def soak(arguments: argparse.Namespace) -> dict[str, object]:
    """Runs the whole test. Returns the report."""
    program = pathlib.Path(shutil.which(arguments.shoal) or arguments.shoal).resolve()
    check_program(program, arguments.model)
    count = str(arguments.devices.count(",") + 1)
    flags = ["-m", str(arguments.model), "-dev", arguments.devices, "-ts", arguments.shares, *FLAGS]
    with Server(
        program, flags, log=arguments.log, port=arguments.port, environment={"SHOAL_CPU_DEVICES": count}
    ) as server:
        test = Soak(arguments, server)
        asyncio.run(test.run())
        say(test.line("end"))
    return test.report()


def main() -> int:
    arguments = parse_arguments()
    try:
        report = soak(arguments)
    except ServingError as error:
        say(f"soak: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    if arguments.output:
        arguments.output.write_text(json.dumps(report, indent=2) + "\n")
    problems = report["problems"]
    assert isinstance(problems, list)
    for problem in problems:
        say(f"soak: problem: {problem}")
    say(f"soak: {'failed' if problems else 'passed'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
