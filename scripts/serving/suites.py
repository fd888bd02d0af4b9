#!/usr/bin/env python3
"""Runs suites of other projects against `shoal serve`.

  scripts/serving/suites.py                       # short versions, a few minutes
  scripts/serving/suites.py --full                # all llama.cpp tests, and ten minutes of schemathesis
  scripts/serving/suites.py --only llama --full

  llama     llama.cpp's server tests: each test that llama-server passes also passes here, except the deliberate
            differences in llama_server_expected.tsv
  openai    the tests of OpenAI's Python package for chat completions, completions and models
  anthropic the tests of Anthropic's Python package for messages
  fuzz      schemathesis: no request of OpenAI's description causes a server error, or an answer that takes too long
  lm_eval   lm-evaluation-harness: generations equal `shoal run --temp 0`, log likelihoods equal `shoal run
            --top-logits`

The first run installs packages into build/suites and downloads source packages, and needs the network. All servers
listen on 127.0.0.1. Exits with 1 if a suite fails."""

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Callable

import evaluation_suite
import fuzz_suite
import llama_suite
import sdk_suites
from environment import FOLDER
from server import MODEL, PROGRAM, ROOT, ServingError, check_program, say
from suite import Result, Settings

SUITES: dict[str, Callable[[Settings], Result]] = {
    "llama": llama_suite.run,
    "openai": lambda settings: sdk_suites.run(settings, sdk_suites.OPENAI),
    "anthropic": lambda settings: sdk_suites.run(settings, sdk_suites.ANTHROPIC),
    "fuzz": fuzz_suite.run,
    "lm_eval": evaluation_suite.run,
}
SHORT_FUZZ, FULL_FUZZ = 20, 600  # seconds


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--only", choices=SUITES, action="append", help="suite to run; may be repeated (default: all)")
    add("--full", action="store_true", help="run all tests")
    add("--fuzz-seconds", type=int, help=f"time of schemathesis ({SHORT_FUZZ}, with --full {FULL_FUZZ})")
    add("-m", dest="model", type=pathlib.Path, default=MODEL, metavar="FILE", help="GGUF file of the model")
    add(
        "--shoal",
        type=pathlib.Path,
        default=pathlib.Path(os.environ.get("SHOAL_PROGRAM", PROGRAM)),
        metavar="PATH",
        help="the program (SHOAL_PROGRAM, or build/release/bin/shoal)",
    )
    add("--sources", type=pathlib.Path, metavar="DIR", help="folder that contains unpacked source packages")
    add(
        "--api",
        type=pathlib.Path,
        default=ROOT / "scripts/serving/openai_api.json",
        metavar="FILE",
        help="OpenAPI description of OpenAI's interface for schemathesis (scripts/serving/openai_api.json)",
    )
    add("--port", type=int, default=0, help="port of the servers (default: any free port)")
    add("--folder", type=pathlib.Path, default=FOLDER / "reports", metavar="DIR", help="folder of logs and reports")
    add("-o", dest="output", type=pathlib.Path, metavar="FILE", help="JSON file with the results")
    return parser.parse_args()


def settings_of(arguments: argparse.Namespace) -> Settings:
    program = pathlib.Path(shutil.which(arguments.shoal) or arguments.shoal).resolve()
    check_program(program, arguments.model)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    seconds = arguments.fuzz_seconds or (FULL_FUZZ if arguments.full else SHORT_FUZZ)
    return Settings(
        program,
        arguments.model.resolve(),
        arguments.folder.resolve(),
        arguments.sources,
        arguments.port,
        arguments.full,
        arguments.api.resolve(),
        seconds,
    )


def run_suite(name: str, settings: Settings) -> Result:
    say(f"suites: {name}")
    begin = time.monotonic()
    try:
        result = SUITES[name](settings)
    except ServingError as error:
        result = Result(name, "did not finish", [str(error)])
    state = "skipped" if result.skipped else "failed" if result.problems else "passed"
    print(f"{name}: {state}: {result.summary} ({time.monotonic() - begin:.0f} s)", flush=True)
    for line in [*result.notes, *result.problems]:
        print(f"  {line}", flush=True)
    return result


def main() -> int:
    arguments = parse_arguments()
    try:
        settings = settings_of(arguments)
        results = [run_suite(name, settings) for name in arguments.only or SUITES]
    except ServingError as error:
        say(f"suites: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    if arguments.output:
        arguments.output.write_text(json.dumps([dataclasses.asdict(result) for result in results], indent=2) + "\n")
    return 1 if any(result.problems for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
