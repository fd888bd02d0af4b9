"""Parses the arguments and defines the order of the steps."""
import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

from gpu import bench, build, logits, machine, models, programs, smoke, tests, times
from gpu.context import ONE, TWO, Context
from gpu.report import Report
from gpu.shell import CheckError
from gpu.steps import NEEDS, Clock, Step, choose, run_all

ROOT = pathlib.Path(__file__).resolve().parents[2]
MEMORY = pathlib.Path("/dev/shm")


def all_steps(emulated: bool, carried=True) -> list[Step]:
    """All steps in order. Steps that detect the most important failures come first. docs/gpu-status.md contains the
    time budget."""
    every = [
        Step("environment", machine.examine, 20),
        Step("programs", programs.unpack, 40, NEEDS) if carried else Step("build", build.build, 330, NEEDS),
        Step("models", models.start, 5, NEEDS),
        tests.streams_step(),
        smoke.step("smoke", ONE),
        smoke.step("smoke-two", TWO),
        tests.first_step(),
        logits.step("logits", ONE, 60),
        logits.step("logits-two", TWO, 30),
        Step("models-rest", lambda context, left: models.start(context, left, models.REST), 5, NEEDS, emulated=False),
        *bench.first_steps(),
        *times.steps(),
        *bench.later_steps(),
        *tests.later_steps(),
    ]
    return [step for step in every if step.emulated or not emulated]


def find_commit(root: pathlib.Path) -> str:
    git = shutil.which("git")
    if not git or not (root / ".git").exists():
        return "unknown"
    found = subprocess.run([git, "-C", str(root), "describe", "--always", "--exclude", "*", "--abbrev=12", "--dirty=+"],
                           capture_output=True, text=True, check=False)  # fmt: skip
    return found.stdout.strip() or "unknown"


def temporary_models() -> pathlib.Path:
    """Makes a folder for models. Disks may be slow, so the folder is in memory if the memory has enough free space."""
    roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > models.ALL_BYTES
    return pathlib.Path(tempfile.mkdtemp(prefix="shoal-models-", dir=MEMORY if roomy else None))


def parse_arguments(arguments: list[str], text: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check", description=text,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--pack", type=pathlib.Path, metavar="DIR",
                        help="build all programs, pack them with their libraries into "
                        "DIR, and exit")  # fmt: skip
    parser.add_argument("--arch", default="90", help="GPU architecture for which --pack builds (default: 90)")
    parser.add_argument("--deps", type=pathlib.Path, metavar="DIR",
                        help="run the programs that --pack has written to DIR; build nothing")  # fmt: skip
    parser.add_argument("--emulated", action="store_true", help="run the steps with the emulated plug-in instead of "
                        "a GPU, without benchmarks")  # fmt: skip
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help="folder for gpu_check.json, summary.txt and "
                        "log.txt (default: gpu_check in the build folder)")  # fmt: skip
    parser.add_argument("--seconds", type=float,
                        help="time limit of all steps together (default: 560; with --emulated: 7200)")
    parser.add_argument("--only", metavar="STEP,...",
                        help="steps to run, separated by commas; bench: all steps whose names begin with bench-")
    parser.add_argument("--list", action="store_true", help="print the names of the steps and exit")
    parser.add_argument("--build", type=pathlib.Path, metavar="DIR",
                        help="build folder (default: build/gpu; with --emulated: build/release)")  # fmt: skip
    parser.add_argument("--models", type=pathlib.Path, metavar="DIR", help="folder of the 8B models; missing models "
                        "are written to DIR and not removed (default: a temporary folder)")  # fmt: skip
    parser.add_argument("-j", "--jobs", type=int, default=build.jobs(), help="number of parallel build jobs")
    parser.add_argument("--commit", help="name of the tested commit, for machines without git")
    return parser.parse_args(arguments)


def make_context(args: argparse.Namespace, models_folder: pathlib.Path) -> Context:
    where = args.build or ROOT / "build" / ("release" if args.emulated else "gpu")
    if args.deps and args.emulated:
        raise CheckError("--deps contains programs for a GPU; remove --emulated")
    deps = args.deps.resolve() if args.deps else None
    if deps and not deps.is_dir():
        raise CheckError(f"--deps: there is no folder {deps}")
    off = tuple(filter(None, os.environ.get("SHOAL_CUDA_OFF", "").split(",")))
    return Context(ROOT, where.resolve(), deps, args.emulated, args.jobs, models_folder, args.commit or find_commit(ROOT),
                   off=off)  # fmt: skip


def pack(args: argparse.Namespace) -> int:
    folder = args.pack.resolve()
    if folder.exists() and any(folder.iterdir()):
        raise CheckError(f"--pack: {folder} is not empty")
    folder.mkdir(parents=True, exist_ok=True)
    context = make_context(args, pathlib.Path("/nonexistent"))
    programs.pack(context, args.arch, folder)
    programs.pack_wheels(context, folder)
    return programs.report_size(folder)


def check(args: argparse.Namespace) -> int:
    chosen = choose(all_steps(args.emulated, bool(args.deps)), args.only)
    context = make_context(args, pathlib.Path("/nonexistent"))
    report = Report(args.out or context.build / "gpu_check", {"commit": context.commit, "emulated": args.emulated,
                                                               "machine": context.machine})  # fmt: skip
    context.models = (args.models or temporary_models()).absolute()
    try:
        run_all(chosen, context, Clock(args.seconds or (7200 if args.emulated else 560)), report)
        bench.add_ratios(context, report)
    finally:
        models.stop(context)
        report.write()
        print("\n" + report.summary(), end="", flush=True)
        if not args.models:
            shutil.rmtree(context.models, ignore_errors=True)
    return report.exit_code()


def stop(number, frame):
    raise KeyboardInterrupt


def main(arguments: list[str], text: str) -> int:
    signal.signal(signal.SIGTERM, stop)
    args = parse_arguments(arguments, text)
    try:
        if args.list:
            print("\n".join(f"{step.name:<24}{step.limit:6.0f} s" for step in all_steps(args.emulated, bool(args.deps))))
            return 0
        return pack(args) if args.pack else check(args)
    except CheckError as error:
        print(f"gpu_check: {error}")
        return 2
    except KeyboardInterrupt:
        print("gpu_check: stopped")
        return 130
