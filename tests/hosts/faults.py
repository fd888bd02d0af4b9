#!/usr/bin/env python3
"""Checks that a fault in a run of several processes soon ends all processes, and that their errors name the reason.

  tests/hosts/faults.py                    100 kills of a process at random moments; 10 runs of each other fault
  tests/hosts/faults.py --runs 6           as in CTest: 6 kills, and 1 run of each other fault
  tests/hosts/faults.py --hosts 2          on 2 network namespaces (as root; see scripts/hosts_up)
  tests/hosts/faults.py --only kill,cut --seed 7 --verbose

The checks of every fault:
- All processes end within the time-out plus 5 s, and mpirun's exit code is not 0.
- Each surviving process writes one line "shoal: error: ..." that names the failed process and its host. If the process
  failed before it sent its host name, the line may omit the host, but mpirun must name the host.
- If mpirun ended a process first (SIGTERM), this process may name itself. mpirun must then name the failed process.
- No process and no file of the run is left.
"""
import argparse
import collections
import contextlib
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import mpirun  # noqa: E402
from mpirun import ROOT, Outcome, Run, RunError, network  # noqa: E402
from measuring import arguments as flags  # noqa: E402
from measuring.program import Stopped, signals_stop  # noqa: E402

TIMEOUT, GRACE = 2.0, 5.0
MODELS = ROOT / "data/models"
MODEL, OTHER_MODEL = MODELS / "tiny-kjv-5m-q8_0.gguf", MODELS / "tiny-kjv-5m-q4_k_m.gguf"
TOKENS = 400
NAMES_ONE = re.compile(r"process (\d+) \(([^)]+)\)")
MPIRUN_ABORTS = "the job has been aborted"
MPIRUN_NAMES = re.compile(r"process rank (\d+) with PID \d+ on node (\S+) exited on signal")


class Skipped(Exception):
    """The reason why a fault cannot be produced here."""


class Faults:
    """One method per fault. A method returns the errors that it found after the run."""

    def __init__(self, options, folder: pathlib.Path, hosts: network.Hosts | None):
        self.options, self.folder, self.hosts = options, folder, hosts
        self.processes = options.processes
        self.random = random.Random(options.seed)
        self.duration, self.startup = 10.0, 0.0  # defaults in seconds; measure() replaces them
        self.tokens: list[int] = []

    def command(self, model: object = MODEL, tokens: int = TOKENS, extra: tuple = ()) -> list[object]:
        return [self.options.program, "run", "-m", model, "--devices", "CPU0", "--prompt-tokens", "1,527,261",
                "-n", tokens, "--ignore-eos", "--temp", 0, "--output", "json", "-sm", self.options.split_mode, *extra]

    def start(self, command: list[object], hosts: network.Hosts | None = None, late: bool = False, **more: object) -> Run:
        """`late`: whether the fault may happen after some ranks have ended normally."""
        environment = {"SHOAL_COMM_TIMEOUT": f"{TIMEOUT:g}", "SHOAL_CPU_THREADS": 1}
        hosts = hosts or self.hosts
        return Run(command, self.processes, environment, hosts, watched=hosts is not None or late, **more)

    def measure(self) -> None:
        """Measures runs without faults: their duration and the time outside loading and generation. Raises RunError."""
        durations, startups = [], []
        for _ in range(3):
            with self.start(self.command()) as run:
                outcome = run.finish(120)
                if wrong := self.remains(outcome):
                    raise RunError(f"an undisturbed run failed: {wrong[0]}")
                answer = outcome.json()
                busy = sum(answer["timings"][name] for name in ("load_ms", "prompt_ms", "generation_ms")) / 1000
                durations.append(outcome.seconds)
                startups.append(max(0.0, outcome.seconds - busy))
                self.tokens = answer["tokens"]
        self.duration, self.startup = statistics.median(durations), statistics.median(startups)

    def remains(self, outcome: Outcome) -> list[str]:
        wrong = []
        if outcome.running or outcome.code is None:
            wrong.append(f"after {outcome.seconds:.1f} s these were still running: "
                         + ", ".join("mpirun" if rank < 0 else f"rank {rank}" for rank in outcome.running or [-1]))
        if outcome.leftovers:
            wrong.append(f"left behind: {', '.join(outcome.leftovers)}")
        return wrong

    def ended(self, run: Run, outcome: Outcome, victim: int | None = None, early: bool = False,
              says: str = "", mpirun_too: bool = True) -> list[str]:
        """Checks the end of a run and returns the errors. `victim`: the rank that cannot report an error. `early`:
        whether the fault may come before the processes know all host names. `says`: a pattern for at least one error
        line. `mpirun_too`: whether mpirun must also end within the time-out plus 5 s."""
        if early:  # MPI has not yet asked its daemon to remove this file
            outcome.leftovers = [path for path in outcome.leftovers if not re.search(rf"/vader_segment\..*\.{victim}$", path)]
        wrong = self.remains(outcome)
        if outcome.code == 0:
            wrong.append("mpirun exited with 0")
        if outcome.ranks_seconds > TIMEOUT + GRACE:
            wrong.append(f"the last rank ended after {outcome.ranks_seconds:.1f} s")
        if mpirun_too and outcome.seconds > TIMEOUT + GRACE:
            wrong.append(f"mpirun ended after {outcome.seconds:.1f} s")
        by_mpirun = MPIRUN_NAMES.search(outcome.words)
        known = by_mpirun is not None and int(by_mpirun[1]) == victim
        survivors = [rank for rank in range(run.processes) if rank != victim]
        for rank in survivors:
            errors = outcome.errors(rank)
            if len(errors) > 1:
                wrong.append(f"rank {rank} wrote {len(errors)} lines: {errors}")
            elif not errors and victim is not None and outcome.codes.get(rank) == 0:
                continue  # the rank had finished its work
            # If mpirun ends a rank at the rank's start, the rank writes no output, and mpirun does not always name the
            # killed process.
            elif not errors and not (early and (known or MPIRUN_ABORTS in outcome.words)) and not (known and self.options.silent):
                wrong.append(f"rank {rank} says nothing; stderr of all: {outcome.words.strip()[-300:]!r}")
            elif errors:
                named = {int(number): host for number, host in NAMES_ONE.findall(errors[0])}
                strangers = [number for number, host in named.items() if number >= run.processes
                             or host not in (run.host(number), "unknown host" if known and number == victim else None)]
                told = known and rank in named and "SIGTERM" in errors[0]
                if not named:
                    wrong.append(f"rank {rank} names no process and host: {errors[0]}")
                elif strangers:
                    wrong.append(f"rank {rank} names a wrong process or host: {errors[0]}")
                elif victim is not None and victim not in named and not told:
                    wrong.append(f"rank {rank} does not name {victim}: {errors[0]}")
        if says and not any(re.search(says, line) for rank in survivors for line in outcome.errors(rank)):
            wrong.append(f"no rank says {says!r}: {[outcome.errors(rank) for rank in survivors]}")
        return wrong

    def wait_after_start(self, run: Run) -> bool:
        """Waits until the processes know each other, and then for a random time. Returns False if the run ends first."""
        if not run.wait_until_mapped(MODEL):
            return False
        time.sleep(self.random.uniform(0, self.duration - self.startup))
        return True

    def at_random(self, act: Callable[[Run, int], bool], joined: bool = True, undo: Callable[[], None] = lambda: None,
                  limit: float = TIMEOUT + GRACE + 2, **more: object) -> tuple[Run, int, float, Outcome]:
        """Starts a run and applies `act` to a random rank at a random moment. `joined`: whether the processes must know
        each other. `limit` exceeds the allowed time, so the caller can report a run that ends too late."""
        for _ in range(50):
            moment = self.random.uniform(0, self.duration)
            victim = self.random.randrange(self.processes)
            with self.start(self.command(), late=joined or moment >= self.startup, **more) as run:
                if not joined:
                    run.sleep_until(moment)
                elif not self.wait_after_start(run):
                    continue
                moment = time.monotonic() - run.began
                if not act(run, victim):
                    continue  # the rank was not running, so the run does not count
                try:
                    outcome = run.finish(limit)
                finally:
                    undo()
                if outcome.code == 0 and not outcome.running:
                    continue  # the run had already finished its work
                if set(outcome.running) <= {victim, -1} and outcome.code is None and "shoal: error" not in outcome.words:
                    continue  # the rank was stopped after all other ranks had ended
                if self.options.verbose:
                    print(f"  {moment:.2f} s, rank {victim}: code {outcome.code}, {outcome.seconds:.1f} s;",
                          outcome.words.strip().splitlines()[:1], flush=True)
                return run, victim, moment, outcome
        raise RunError("none of 50 runs could be disturbed")

    def kill(self) -> list[str]:
        early = False

        def act(run: Run, rank: int) -> bool:
            nonlocal early
            early = not run.have_mapped(MODEL)
            return run.kill(rank, signal.SIGKILL)

        run, victim, moment, outcome = self.at_random(act, joined=False)
        return [f"rank {victim} killed after {moment:.2f} s: {text}" for text in self.ended(run, outcome, victim, early)]

    def stop(self) -> list[str]:
        run, victim, moment, outcome = self.at_random(lambda run, rank: run.kill(rank, signal.SIGSTOP))
        return [f"rank {victim} stopped after {moment:.2f} s: {text}" for text in self.ended(run, outcome, victim)]

    def pause(self) -> list[str]:
        """Stops a rank, and continues it before the time-out expires. The run must not fail."""
        for _ in range(20):
            with self.start(self.command()) as run:
                victim = self.random.randrange(self.processes)
                if not (self.wait_after_start(run) and run.kill(victim, signal.SIGSTOP)):
                    continue
                time.sleep(TIMEOUT / 4)
                run.kill(victim, signal.SIGCONT)
                outcome = run.finish(60)
                wrong = self.remains(outcome)
                try:
                    if outcome.json()["tokens"] != self.tokens:
                        wrong.append("other tokens")
                except RunError as error:
                    wrong.append(str(error))
                return [f"rank {victim} stopped for {TIMEOUT / 4:g} s: {text}" for text in wrong]
        raise RunError("none of 20 runs could be paused")

    def cut(self) -> list[str]:
        """Cuts the cable of a host. mpirun's daemon on this host must also notice the cut. In these namespaces, TCP
        time-outs are short, so the daemon notices soon."""
        with contextlib.ExitStack() as stack:
            hosts = self.hosts
            if hosts is None:
                if os.geteuid() != 0:
                    raise Skipped("network namespaces need root")
                if self.processes % 2:
                    raise Skipped("an odd number of processes on two hosts")
                hosts = stack.enter_context(network.Hosts(2, name="cut"))
            for number in range(hosts.count):
                subprocess.run(["ip", "netns", "exec", hosts.host(number), "sysctl", "-qw", "net.ipv4.tcp_retries2=3"],
                               check=True)
            number = self.random.randrange(1, hosts.count)

            def act(run: Run, _rank: int) -> bool:
                if len(run.ranks()) < self.processes:
                    return False
                hosts.cut(number)
                return True

            run, _, moment, outcome = self.at_random(act, True, lambda: hosts.mend(number), TIMEOUT + 3 * GRACE, hosts=hosts)
            return [f"{hosts.host(number)} cut off after {moment:.2f} s: {text}"
                    for text in self.ended(run, outcome, mpirun_too=False)]

    def refused(self, command: list[object], what: str, says: str, wrapper: str) -> list[str]:
        """Checks a run that must be refused."""
        with self.start(command, wrapper=wrapper) as run:
            outcome = run.finish(self.duration + TIMEOUT + GRACE)
            wrong = self.ended(run, outcome, says=says)
            if outcome.stdout.strip() and '"error"' not in outcome.stdout:
                wrong.append(f"it wrote {outcome.stdout.strip()[:60]!r}")
            if self.options.verbose:
                print(f"  {what}: code {outcome.code};", [outcome.errors(rank) for rank in range(run.processes)])
        return [f"{what}: {text}" for text in wrong]

    def in_folders(self, change: Callable[[pathlib.Path], None], victim: int) -> str:
        """Copies the model to one folder per rank and changes the copy of the victim. Returns a wrapper that enters the
        folder of the rank."""
        place = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        for rank in range(self.processes):
            (place / str(rank)).mkdir()
            shutil.copy(MODEL, place / str(rank) / "model.gguf")
        change(place / str(victim) / "model.gguf")
        return f"cd {place}/$OMPI_COMM_WORLD_RANK"

    def file(self) -> list[str]:
        """One rank has a wrong model file: another model, one changed header byte, half the file, or no file."""
        def one_byte(path: pathlib.Path) -> None:
            content = path.read_bytes()
            at = content.index(b"general.architecture") + len("general.")  # a key that the program reads
            at = content.index(b"general.name") + len("general.name") + 12 if b"general.name" in content else at
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1:])

        wrong = []
        victim = self.random.randrange(self.processes)
        for what, change in (("another model", lambda path: shutil.copy(OTHER_MODEL, path)),
                             ("another byte in the header", one_byte),
                             ("half of the file", lambda path: os.truncate(path, path.stat().st_size // 2)),
                             ("no file", pathlib.Path.unlink)):
            wrong += self.refused(self.command("model.gguf"), f"{what} in rank {victim}", f"process {victim} |model.gguf",
                                  self.in_folders(change, victim))
        return wrong

    def other_program(self) -> pathlib.Path:
        """Returns a copy of the program with another version number."""
        said = subprocess.run([self.options.program, "--version"], capture_output=True, text=True, check=True).stdout
        number = said.split()[1].encode()  # "shoal 0.1.0"
        other = number[:-1] + (b"8" if number.endswith(b"9") else b"9")
        content = self.options.program.read_bytes()
        if number + b"\0" not in content:
            raise Skipped(f"{self.options.program} does not contain {number.decode()}; use --other-program")
        path = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / self.options.program.name
        path.write_bytes(content.replace(number + b"\0", other + b"\0"))
        path.chmod(0o755)
        return path

    def version(self) -> list[str]:
        other = pathlib.Path(self.options.other_program or self.other_program()).resolve()
        victim = self.random.randrange(self.processes)
        wrapper = (f'[ "$OMPI_COMM_WORLD_RANK" != {victim} ] || '
                   f"{{ shift; set -- {other} \"$@\"; export SHOAL_PLUGIN_PATH={self.options.program.parent}; }}")
        return self.refused(self.command(), f"another version in rank {victim}", "install the same", wrapper)

    def disk(self) -> list[str]:
        """The run writes its trace to a full disk."""
        if os.geteuid() != 0:
            raise Skipped("a full disk needs root")
        place = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], capture_output=True, check=False)
        if mounted.returncode != 0:
            raise Skipped(f"mount: {mounted.stderr.decode().strip()}")
        try:
            with self.start(self.command(extra=("--trace", place / "trace.json"))) as run:
                outcome = run.finish(self.duration * 2 + TIMEOUT + GRACE)
                wrong = self.remains(outcome)
                if outcome.code == 0:
                    wrong.append("mpirun exited with 0")
                lines = [line for rank in range(run.processes) for line in outcome.errors(rank)]
                if not any("trace.json" in line for line in lines):
                    wrong.append(f"no line names the file: {lines}")
                if any(len(outcome.errors(rank)) > 1 for rank in range(run.processes)):
                    wrong.append(f"more than one line: {lines}")
                return [f"trace on a full disk: {text}" for text in wrong]
        finally:
            subprocess.run(["umount", place], check=False)


SCENARIOS = ("kill", "stop", "pause", "cut", "file", "version", "disk")
REFUSED = {"file", "version"}  # runs that are refused at the start


def report(faults: Faults, options) -> int:
    """Runs all selected faults. Returns the number of wrong runs."""
    print(f"{options.processes} processes, seed {options.seed}", flush=True)
    if set(options.only) - REFUSED:
        faults.measure()
        print(f"a run takes {faults.duration:.2f} s, {faults.startup:.2f} s of it to start and end", flush=True)
    bad = 0
    for name in options.only:
        found, begin = collections.Counter(), time.monotonic()
        for _ in range(options.runs if name == "kill" else max(1, options.runs // 10)):
            try:
                wrong = getattr(faults, name)()
            except Skipped as why:
                print(f"{name}: skipped: {why}", flush=True)
                break
            found["wrong" if wrong else "well"] += 1
            for line in wrong:
                print(f"{name}: {line}", flush=True)
        else:
            print(f"{name}: {found['well']} of {found.total()} ended correctly, {time.monotonic() - begin:.0f} s",
                  flush=True)
        bad += found["wrong"]
    return bad


def parsed() -> argparse.Namespace:
    parser = flags.Parser(description=__doc__)
    parser.add_argument("--program", default=mpirun.PROGRAM, type=pathlib.Path,
                        help="program to run (default: $SHOAL_PROGRAM, else build/release/bin/shoal)")
    parser.add_argument("--other-program", help="another version of the program (default: a copy with a changed version number)")
    parser.add_argument("--runs", type=int, default=100,
                        help="number of runs in which a process is killed; every other fault gets a tenth of this number (default: 100)")
    parser.add_argument("--processes", type=int, default=2, help="number of processes per run (default: 2)")
    parser.add_argument("-sm", "--split-mode", default="tensor", choices=("tensor", "layer"), help="split mode of the model")
    parser.add_argument("--hosts", type=int, default=0, help="number of network namespaces to run on (default: none)")
    parser.add_argument("--only", default=",".join(SCENARIOS), help=f"faults to run (default: all): {', '.join(SCENARIOS)}")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--silent", action="store_true", help="if mpirun ended a process, accept that the process writes nothing")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    options.only = options.only.split(",")
    for name in options.only:
        if name not in SCENARIOS:
            parser.error(f"--only: there is no {name}; there are {', '.join(SCENARIOS)}")
    if options.processes < 2 or options.runs < 1:
        parser.error("expected --processes >= 2 and --runs >= 1")
    return options


def main() -> int:
    options = parsed()
    if not options.program.is_file():
        print(f"faults.py: error: program {options.program} not found; pass --program", file=sys.stderr)
        return 2
    options.program = options.program.resolve()
    try:
        with signals_stop(), tempfile.TemporaryDirectory(prefix="shoal-faults-") as folder, contextlib.ExitStack() as stack:
            hosts = stack.enter_context(network.Hosts(options.hosts, name="faults")) if options.hosts else None
            bad = report(Faults(options, pathlib.Path(folder), hosts), options)
    except (RunError, network.NetworkError) as error:
        print(f"faults.py: error: {error}", file=sys.stderr)
        return 1
    except Stopped as stopped:
        return stopped.code
    print(f"{bad} runs ended incorrectly" if bad else "all runs ended correctly")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
