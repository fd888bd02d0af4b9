#!/usr/bin/env python3
"""Measures servers: `shoal serve` against llama-server of llama.cpp, with several clients. llama-server is compiled
from the source package of llama-cpp-python.

  scripts/make_model.py --preset 1b --type q4_0 1b-q4_0.gguf
  benchmarks/peers/serving.py -m 1b-q4_0.gguf -t 2 --clients 1,4,16 -p 256 -n 64 -r 3
  benchmarks/peers/serving.py --setup                            # only compiles llama-server

In each round, both servers run one after the other, and the order alternates from round to round. All clients of a
server begin at the same time, and each client sends --requests requests, one at a time. Prompts are random, so no
prompt is in a cache. All answers have -n tokens.

Prints a Markdown table (or JSON, -o). tokens/s is the rate of generated tokens over the whole run, with the time of the
prompts. TTFT is the median time from a request to its first token. All numbers are medians of the rounds. A ratio above
1 means that shoal is faster: a ratio is the median of all rounds, and in parentheses the ratio of the best values.

"cost" is the share of the event loop's thread in the processor time of `shoal serve`. The engine would have this time
without the server. Prompts of token ids and answers without a grammar need no other thread of the server."""

import argparse
import dataclasses
import json
import pathlib
import statistics
import sys

import engines
import environment
from errors import CompareError

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
sys.path.append(str(ROOT / "scripts/serving"))  # behind this folder, which also has a module `environment`

import load as clients  # noqa: E402
from compare import PROGRAM, labels  # noqa: E402
from measuring.arguments import numbers, positive  # noqa: E402
from measuring.interference import Others, usable_processors  # noqa: E402
from measuring.program import Stopped, signals_stop  # noqa: E402
from server import Server, ServingError  # noqa: E402

CELL = 256  # llama.cpp rounds the context of each request up to a multiple of this number
LOGS = ROOT / "build/peers-serving"


@dataclasses.dataclass(frozen=True)
class Program:
    """A server, with llama-server's names for its flags."""

    name: str
    path: pathlib.Path
    command: tuple[str, ...]
    flags: tuple[str, ...]

    def server(self, model: str, arguments: argparse.Namespace) -> Server:
        most = max(arguments.clients)
        length = -(-(arguments.prompt + arguments.generate) // CELL) * CELL
        flags = [
            "-m",
            model,
            "-t",
            str(arguments.threads),
            "-np",
            str(most),
            "-c",
            str(most * length),
            "-ub",
            str(arguments.ubatch),
            *self.flags,
        ]
        return Server(self.path, flags, log=LOGS / f"{self.name}.log", command=self.command, prefix=arguments.prefix)


@dataclasses.dataclass
class Row:
    """A number of clients of a model. The lists have one element per finished round."""

    model: str
    clients: int
    ours: list[clients.Sample] = dataclasses.field(default_factory=list)
    theirs: list[clients.Sample] = dataclasses.field(default_factory=list)
    costs: list[float] = dataclasses.field(default_factory=list)

    @property
    def rounds(self) -> int:
        return min(len(self.ours), len(self.theirs))

    def summary(self) -> dict[str, float]:
        pairs = list(zip(self.ours, self.theirs, strict=False))
        rates = [(ours.tokens_per_second, theirs.tokens_per_second) for ours, theirs in pairs]
        firsts = [(ours.first_token_seconds, theirs.first_token_seconds) for ours, theirs in pairs]
        return {
            "shoal": statistics.median(ours for ours, _ in rates),
            "llama-server": statistics.median(theirs for _, theirs in rates),
            "ratio": statistics.median(ours / theirs for ours, theirs in rates),
            "best_ratio": max(ours for ours, _ in rates) / max(theirs for _, theirs in rates),
            "ttft_shoal": statistics.median(ours for ours, _ in firsts),
            "ttft_llama-server": statistics.median(theirs for _, theirs in firsts),
            "ttft_ratio": statistics.median(theirs / ours for ours, theirs in firsts),
            "ttft_best_ratio": min(theirs for _, theirs in firsts) / min(ours for ours, _ in firsts),
            "cost": statistics.median(self.costs),
        }


def markdown(rows: list[Row]) -> list[str]:
    lines = [
        "| model | clients | tokens/s shoal | tokens/s llama-server | ratio | TTFT shoal | TTFT llama-server | ratio | cost |",
        f"|{'---|' * 9}",
    ]
    for row in rows:
        found = row.summary()
        lines.append(
            f"| {row.model} | {row.clients} | {found['shoal']:.1f} | {found['llama-server']:.1f} | "
            f"{found['ratio']:.2f} "
            f"({found['best_ratio']:.2f}) | {found['ttft_shoal']:.2f} s | {found['ttft_llama-server']:.2f} s | "
            f"{found['ttft_ratio']:.2f} ({found['ttft_best_ratio']:.2f}) | {found['cost']:.1%} |"
        )
    return lines


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("-m", dest="models", action="append", default=[], metavar="FILE", help="GGUF file of a model; may be repeated")
    add("--clients", type=numbers(1), default=[1, 4, 16], metavar="INTS", help="numbers of clients (1,4,16)")
    add("--requests", type=positive(int), default=2, metavar="INT", help="number of requests of each client (2)")
    add("-p", dest="prompt", type=positive(int), default=256, metavar="INT", help="prompt tokens per request (256)")
    add("-n", dest="generate", type=positive(int), default=64, metavar="INT", help="generated tokens per request (64)")
    add(
        "-t",
        dest="threads",
        type=positive(int),
        default=usable_processors(),
        metavar="INT",
        help="number of threads (default: number of usable processors, at most the CPU quota)",
    )
    add(
        "-ub",
        dest="ubatch",
        type=positive(int),
        default=512,
        metavar="INT",
        help="maximum number of tokens per batch (512)",
    )
    add("-r", dest="rounds", type=positive(int), default=3, metavar="INT", help="number of rounds (3)")
    add("-o", dest="output", choices=["md", "json"], default="md")
    add("--json", type=pathlib.Path, metavar="FILE", help="file that gets the JSON in addition to the table")
    add(
        "--shoal",
        default=str(PROGRAM),
        metavar="PATH[,ARGUMENTS]",
        help="path of shoal, and additional arguments of `shoal serve`",
    )
    add(
        "--llama-server",
        metavar="PATH[,ARGUMENTS]",
        help="path of llama-server, and additional arguments (default: the program in --folder)",
    )
    add(
        "--folder",
        type=pathlib.Path,
        default=environment.SOURCE_BUILD,
        metavar="DIR",
        help="folder in which llama-server is compiled (build/peers-source)",
    )
    add("--setup", action="store_true", help="first compile llama-server; without -m, exit after the compilation")
    add(
        "--jobs",
        type=positive(int),
        default=usable_processors(),
        metavar="INT",
        help="number of compilers that --setup runs at the same time",
    )
    add(
        "--prefix",
        type=str.split,
        default=[],
        metavar="COMMAND",
        help='command that starts every program, such as "taskset -c 0,1"',
    )
    arguments = parser.parse_args()
    if not arguments.models and not arguments.setup:
        parser.error("give a model with -m, or --setup")
    return arguments


def compiled_server(folder: pathlib.Path, wanted: bool, jobs: int) -> pathlib.Path:
    """Returns the path of llama-server. Compiles it if `wanted`, or if the folder does not contain it."""
    program = folder / "build/bin/llama-server"
    if program.exists() and not wanted:
        return program
    environment.batched_bench(folder, wanted, jobs)  # downloads the sources, and compiles the libraries
    sources = sorted(folder.glob("llama_cpp_python-*/vendor/llama.cpp"), key=lambda path: path.stat().st_mtime)
    if not sources:
        raise CompareError(f"{folder} has no sources of llama.cpp; compile it with --setup")
    log, remedy = folder / "setup.log", "the compilation needs cmake and a C++ compiler"
    options = ["-DLLAMA_BUILD_SERVER=ON", "-DLLAMA_USE_PREBUILT_UI=OFF"]
    environment.logged(
        ["cmake", "-S", sources[-1], "-B", folder / "build", *options], log, "configuring llama-server", remedy
    )
    build = ["cmake", "--build", folder / "build", "--target", program.name, "-j", str(jobs)]
    environment.logged(build, log, "compiling llama-server", remedy)
    return program


def shoal_program(arguments: argparse.Namespace) -> Program:
    path, extra = engines.path_and_arguments("shoal", arguments.shoal)
    remedy = "build it: cmake --preset release && cmake --build --preset release --target shoal"
    return Program("shoal", pathlib.Path(engines.find_program(path, "shoal", remedy)), ("serve",), tuple(extra))


def llama_program(arguments: argparse.Namespace) -> Program:
    if arguments.llama_server:
        path, extra = engines.path_and_arguments("llama-server", arguments.llama_server)
        found = pathlib.Path(engines.find_program(path, "llama-server", "give the path of llama-server"))
    else:
        found, extra = compiled_server(arguments.folder.absolute(), arguments.setup, arguments.jobs), []
    return Program("llama-server", found, (), ("-tb", str(arguments.threads), "-ngl", "0", "--no-webui", *extra))


class Comparison:
    """All rounds of all models. Finished rounds can be printed at any time."""

    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        for model in arguments.models:
            if not pathlib.Path(model).exists():
                raise CompareError(f"{model}: no such file; scripts/make_model.py writes models")
        self.programs = [shoal_program(arguments), llama_program(arguments)]
        self.names = labels(arguments.models)
        self.rows = [Row(name, count) for name in self.names for count in arguments.clients]
        self.others = Others()

    def run(self) -> None:
        for number in range(self.arguments.rounds):
            for place, (name, model) in enumerate(zip(self.names, self.arguments.models, strict=True)):
                rows = [row for row in self.rows if row.model == name]
                for which in (1, 0) if (place + number) % 2 else (0, 1):
                    self.server_round(rows, model, number, which)

    def server_round(self, rows: list[Row], model: str, number: int, which: int) -> None:
        """All numbers of clients on one server. `which`: the program."""
        arguments, program = self.arguments, self.programs[which]
        with self.others.watched(), program.server(model, arguments) as server:
            vocabulary = clients.vocabulary_of(server.port)
            clients.run(server.port, clients.Load(1, 1, arguments.prompt, 4), vocabulary, -1)  # warm-up
            for row in rows:
                self.say(row, number, program.name)
                load = clients.Load(row.clients, arguments.requests, arguments.prompt, arguments.generate)
                before = server.processor_seconds()
                sample = clients.run(server.port, load, vocabulary, number)
                main, total = (now - then for now, then in zip(server.processor_seconds(), before, strict=True))
                if which == 0:
                    row.costs.append(main / total)
                (row.theirs if which else row.ours).append(sample)
                server.check()

    def say(self, row: Row, number: int, name: str) -> None:
        print(
            f"serving: {row.model}, {row.clients} clients, round {number + 1} of {self.arguments.rounds}: {name}",
            file=sys.stderr,
            flush=True,
        )

    def print_all(self) -> None:
        rows = [row for row in self.rows if row.rounds]
        if not rows:
            return
        text = json.dumps([as_json(row) for row in rows], indent=2)
        if self.arguments.json:
            self.arguments.json.write_text(text + "\n")
        lines = [text] if self.arguments.output == "json" else markdown(rows)
        print(*lines, sep="\n", flush=True)
        if line := self.others.line():
            print(f"serving: {line}", file=sys.stderr)


def as_json(row: Row) -> dict:
    samples = {
        name: [dataclasses.asdict(sample) for sample in found]
        for name, found in (("shoal", row.ours), ("llama-server", row.theirs))
    }
    return {"model": row.model, "clients": row.clients, "rounds": row.rounds, **row.summary(), "samples": samples}


def main() -> int:
    arguments = parse_arguments()
    try:
        if not arguments.models:
            compiled_server(arguments.folder.absolute(), True, arguments.jobs)
            return 0
        comparison = Comparison(arguments)
        try:
            with signals_stop():
                comparison.run()
        finally:
            comparison.print_all()
        return 0
    except (CompareError, ServingError) as error:
        sys.exit(f"serving: {error}")
    except Stopped as stopped:
        return stopped.code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
