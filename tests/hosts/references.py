#!/usr/bin/env python3
"""Checks that the small models give their reference outputs on meshes of 1 to 8 ranks in 1 to 4 processes.

  tests/hosts/references.py                       all models on all meshes: an hour on two cores
  tests/hosts/references.py --quick               the selection of CTest
  tests/hosts/references.py --models llama,gpt-oss --meshes 2x1,layers_2
  tests/hosts/references.py --hosts 2             on 2 network namespaces (as root; see scripts/hosts_up)
  tests/hosts/references.py --list

Logits after a prompt are compared with tests/models/references and data/models/expected. Tests on one host use the
same tolerances. Greedy tokens are compared with a run of one process on one device, or with llama.cpp's tokens.
"""
import argparse
import contextlib
import dataclasses
import json
import math
import pathlib
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import gguf  # noqa: E402
import mpirun  # noqa: E402
from mpirun import ROOT, RunError, network  # noqa: E402
from measuring import arguments as flags  # noqa: E402
from measuring.program import ProgramError, Shoal, Stopped, signals_stop  # noqa: E402

CLOSE = 1e-9  # NMSE, as in tests/models/arch/architectures_test.cpp
TOKENS = 12
QUICK_MODELS = ("tiny-q8_0", "llama", "gpt-oss")
QUICK_MESHES = ("2x1", "2x2_uneven", "3_mixed", "layers_2")


@dataclasses.dataclass(frozen=True)
class Mesh:
    name: str
    processes: int
    devices: str            # value of --devices
    flags: tuple = ()
    hosts: int = 0          # number of hosts that the mesh needs; 0: any number of hosts


def cpus(count: int) -> str:
    return ",".join(f"CPU{number}" for number in range(count))


def meshes() -> list[Mesh]:
    found = [Mesh(f"{processes}x{each}", processes, cpus(each))
             for processes, each in ((1, 1), (1, 3), (1, 8), (2, 1), (2, 2), (2, 4), (3, 1), (3, 2), (4, 1), (4, 2))]

    def add(name: str, processes: int, devices: str, *more: str, hosts: int = 0) -> None:
        found.append(Mesh(name, processes, devices, more, hosts))

    add("2x1_uneven", 2, cpus(1), "-ts", "3,1")
    add("2x1_nothing", 2, cpus(1), "-ts", "0,1")
    add("2x2_uneven", 2, cpus(2), "-ts", "4,3,2,1")
    add("3x1_uneven", 3, cpus(1), "-ts", "5,0,2")
    add("4x2_uneven", 4, cpus(2), "-ts", "1,4,2,2,3,0,1,1")
    add("3_mixed", 2, "CPU0,CPU1,1:CPU0")
    add("5_mixed", 3, "CPU0,1:CPU0,1:CPU1,1:CPU2,2:CPU1")
    add("5_mixed_uneven", 3, "CPU0,CPU1,1:CPU0,2:CPU0,2:CPU1", "-ts", "0,1,0,0,3")
    add("7_mixed", 4, "CPU0,1:CPU0,1:CPU1,2:CPU0,2:CPU1,2:CPU2,3:CPU0")
    for processes in (2, 3, 4):
        add(f"layers_{processes}", processes, "CPU0", "-sm", "layer")
        add(f"layers_{processes}x2", processes, "CPU0+CPU1", "-sm", "layer")
    add("layers_2_uneven", 2, "CPU0+CPU1", "-sm", "layer", "-ts", "3,1")
    add("layers_3_nothing", 3, "CPU0", "-sm", "layer", "-ts", "1,0,2")
    add("layers_mixed", 3, "CPU0,1:CPU0+1:CPU1,1:CPU2,2:CPU0", "-sm", "layer")
    add("one_computer", 3, "@0")
    # These meshes need --hosts 2. The processes of each host form a group.
    add("computers_2", 2, "@0,@1", "-sm", "layer", hosts=2)
    add("computers_2x2", 4, "@0,@1", "-sm", "layer", hosts=2)
    add("computers_2x2_uneven", 4, "@1,@0", "-sm", "layer", "-ts", "1,3", hosts=2)
    return found


@dataclasses.dataclass
class Question:
    """A prompt for a model, and its expected results."""
    model: pathlib.Path
    prompt: list[int]
    arguments: list[object]
    logits: dict[int, float]        # expected logits of some tokens after the prompt
    limit: float                    # allowed error of the logits
    tokens: list[int] | None        # expected tokens; None: a run on one device gives the tokens

    def ask(self) -> list[object]:
        return ["run", "-m", self.model, "--prompt-tokens", ",".join(map(str, self.prompt)), "--temp", 0, "--ignore-eos",
                "--output", "json", *self.arguments]

    def wrong(self, answer: dict, error) -> list[str]:
        found = []
        if answer["tokens"] != self.tokens:
            at = next((i for i, (one, other) in enumerate(zip(answer["tokens"], self.tokens)) if one != other),
                      min(len(answer["tokens"]), len(self.tokens)))
            found.append(f"token {at}: {answer['tokens'][at:at + 4]} instead of {self.tokens[at:at + 4]}")
        logits = {token: value for token, value in answer["top_logits"]}
        missing = len(self.logits.keys() - logits.keys())
        if missing:
            found.append(f"{missing} logits are missing")
        elif not error(logits, self.logits) <= self.limit:  # also catches NaN
            found.append(f"error of logits {error(logits, self.logits):.2g}, allowed {self.limit:.2g}")
        return found


def nmse(found: dict[int, float], expected: dict[int, float]) -> float:
    return sum((found[token] - value) ** 2 for token, value in expected.items()) / sum(v * v for v in expected.values())


def largest(found: dict[int, float], expected: dict[int, float]) -> float:
    return max((abs(found[token] - value) for token, value in expected.items()), key=lambda x: math.inf if x != x else x)


def tiny_models(build: pathlib.Path) -> dict[str, pathlib.Path]:
    folders = [ROOT / "data/models", build / "tests/models"]
    found = {path.stem.removeprefix("tiny-kjv-5m-"): path for folder in folders for path in sorted(folder.glob("*.gguf"))}
    return {f"tiny-{kind}": path for kind, path in found.items()}


def reference_models() -> list[str]:
    return sorted(path.stem for path in (ROOT / "tests/models/references").glob("*.gguf"))


def tiny_questions(model: pathlib.Path) -> list[Question]:
    reference = json.loads((ROOT / "data/models/expected" / f"{model.stem}.json").read_text())
    questions = []
    for case in reference["cases"]:
        tokens = case["continuation_ids"]
        allowed = max(1.5 * case["max_abs_diff_exact"], 0.02)
        questions.append(Question(model, case["prompt_ids"], ["-n", len(tokens), "--top-logits", 100],
                                  dict(map(tuple, case["top10_exact"])), allowed, tokens))
    return questions


def reference_questions(name: str, build: pathlib.Path, shoal: Shoal) -> list[Question]:
    model = build / "tests/references" / f"{name}.gguf"
    if not model.is_file():
        raise RunError(f"{model} not found; the target reference_models writes it")
    file = gguf.File(ROOT / "tests/models/references" / f"{name}.gguf")
    questions = []
    for length in (7, 300):
        vocabulary = file.shape(f"logits.{length}")[0]
        logits = file.values(f"logits.{length}")[-vocabulary:]
        context = file.keys["reference.context"]
        arguments = ["-n", TOKENS, "-c", context, "-ctk", "f32", "-ctv", "f32", "--top-logits", vocabulary]
        question = Question(model, list(file.values(f"ids.{length}")), arguments, dict(enumerate(logits)), CLOSE, None)
        alone = shoal.json([*question.ask(), "--devices", "CPU0"])
        question.tokens = alone["tokens"]
        questions.append(question)
    return questions


def answer(question: Question, mesh: Mesh, program: pathlib.Path, hosts: network.Hosts | None) -> dict:
    command = [program, *question.ask(), "--devices", mesh.devices, *mesh.flags]
    environment = {"SHOAL_CPU_DEVICES": 8, "SHOAL_CPU_THREADS": 1, "SHOAL_COMM_TIMEOUT": 20}
    if hosts is not None and mesh.processes % hosts.count == 0:
        return mpirun.run(command, mesh.processes, environment=environment, hosts=hosts).json()
    return mpirun.run(command, mesh.processes, environment=environment).json()


def compare(options, hosts: network.Hosts | None) -> tuple[int, int]:
    """Returns the number of answers and the number of wrong answers."""
    shoal = Shoal(options.program, {"SHOAL_CPU_THREADS": 1}, timeout=120)
    tiny = tiny_models(options.build)
    asked = bad = 0
    for name in options.models:
        begin, before = time.monotonic(), (asked, bad)
        questions = tiny_questions(tiny[name]) if name in tiny else reference_questions(name, options.build, shoal)
        if options.quick:
            questions = questions[-1:]
        for mesh in options.meshes:
            for question in questions:
                asked += 1
                try:
                    wrong = question.wrong(answer(question, mesh, shoal.path, hosts), largest if name in tiny else nmse)
                except RunError as error:
                    wrong = [str(error)]
                bad += bool(wrong)
                for line in wrong:
                    print(f"{name}, {mesh.name}, prompt of {len(question.prompt)}: {line}", flush=True)
        print(f"{name}: {asked - before[0] - (bad - before[1])} of {asked - before[0]} as expected, "
              f"{time.monotonic() - begin:.0f} s", flush=True)
    return asked, bad


def chosen(parser: flags.Parser, flag: str, words: str, known: list[str]) -> list[str]:
    names = words.split(",")
    for name in names:
        if name not in known:
            parser.error(f"{flag}: there is no {name}; --list shows all")
    return names


def parsed() -> argparse.Namespace:
    parser = flags.Parser(description=__doc__)
    parser.add_argument("--program", default=mpirun.PROGRAM, type=pathlib.Path,
                        help="program to run (default: $SHOAL_PROGRAM, else build/release/bin/shoal)")
    parser.add_argument("--build", type=pathlib.Path, help="build folder with the generated models (default: the program's build folder)")
    parser.add_argument("--models", help="models to check, separated by commas (default: all)")
    parser.add_argument("--meshes", help="meshes to check, separated by commas (default: all)")
    parser.add_argument("--quick", action="store_true", help="check only a few models and meshes, with one prompt per model")
    parser.add_argument("--hosts", type=int, default=0,
                        help="number of network namespaces; a mesh uses the namespaces if its process count is a multiple of this number")
    parser.add_argument("--list", action="store_true", help="print the names of models and meshes")
    options = parser.parse_args()
    options.build = options.build or options.program.resolve().parents[1]
    models, known = [*tiny_models(options.build), *reference_models()], {mesh.name: mesh for mesh in meshes()}
    if options.list:
        print(f"models: {', '.join(models)}\nmeshes: {', '.join(known)}")
        sys.exit(0)
    all_models, all_meshes = (QUICK_MODELS, QUICK_MESHES) if options.quick else (models, known)
    options.models = chosen(parser, "--models", options.models or ",".join(all_models), models)
    options.meshes = [known[name] for name in chosen(parser, "--meshes", options.meshes or ",".join(all_meshes), list(known))
                      if known[name].hosts in (0, options.hosts) and not (name == "one_computer" and options.hosts)]
    return options


def main() -> int:
    options = parsed()
    try:
        with signals_stop(), contextlib.ExitStack() as stack:
            hosts = stack.enter_context(network.Hosts(options.hosts, name="references")) if options.hosts else None
            asked, bad = compare(options, hosts)
    except (RunError, ProgramError, network.NetworkError) as error:
        print(f"references.py: error: {error}", file=sys.stderr)
        return 1
    except Stopped as stopped:
        return stopped.code
    print(f"{bad} of {asked} answers are wrong" if bad else f"all {asked} answers are right")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
