"""Arguments, and the order of the steps."""
import argparse
import pathlib
import shutil
import signal
import subprocess
import tempfile

from gpu import bench, build, machine, pack, tests
from gpu.context import Context
from gpu.report import Report
from gpu.shell import CheckError
from gpu.steps import Clock, Step, choose, run_all

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL_BYTES = 16_000_000_000


def all_steps(emulated: bool) -> list[Step]:
    """Correctness first, so that what time runs out for is benchmarks."""
    long = 3600.0
    first = [
        Step("environment", machine.examine, 30),
        Step("googletest", build.build_googletest, 120, ("environment",)),
        Step("configure", build.configure, 120, ("googletest",)),
        Step("build", build.build, long if emulated else 330, ("configure",)),
    ]
    if emulated:
        return first + tests.steps(True)
    first.insert(1, Step("models-start", bench.start_models, 10, ("environment",)))
    return [*first, *tests.steps(False), *bench.steps(), Step("registers", build.kernel_resources, 30, ("configure",))]


def find_commit(root: pathlib.Path) -> str:
    git = shutil.which("git")
    if not git or not (root / ".git").exists():
        return "unknown"
    found = subprocess.run([git, "-C", str(root), "describe", "--always", "--exclude", "*", "--abbrev=12", "--dirty=+"],
                           capture_output=True, text=True, check=False)  # fmt: skip
    return found.stdout.strip() or "unknown"


def models_folder() -> pathlib.Path:
    """In memory where there is room, because disks may be slow; the folder of this run only."""
    memory = pathlib.Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > MODEL_BYTES
    return pathlib.Path(tempfile.mkdtemp(prefix="shoal-models-", dir=memory if roomy else None))


def parse_arguments(arguments: list[str], text: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check", description=text,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--pack", type=pathlib.Path, metavar="DIR", help="collect what a bare machine lacks, and end")
    parser.add_argument("--deps", type=pathlib.Path, metavar="DIR", help="what --pack collected")
    parser.add_argument("--emulated", action="store_true", help="test the emulated plug-in; no benchmarks")
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help="for gpu_check.json, summary.txt and log.txt "
                        "(default: gpu_check in the build folder)")  # fmt: skip
    parser.add_argument("--seconds", type=float, help="for everything (default: 560; emulated: 7200)")
    parser.add_argument("--only", metavar="STEP,...", help="these steps; bench stands for all bench-..., and so on")
    parser.add_argument("--list", action="store_true", help="print the names of the steps, and end")
    parser.add_argument("--build", type=pathlib.Path, metavar="DIR", help="default: build/gpu; emulated: build/release")
    parser.add_argument("--models", type=pathlib.Path, metavar="DIR", help="where the 8B models are, or are written "
                        "and stay (default: a temporary folder)")  # fmt: skip
    parser.add_argument("-j", "--jobs", type=int, default=build.jobs())
    parser.add_argument("--commit", help="what is tested, for machines without git")
    return parser.parse_args(arguments)


def make_context(args: argparse.Namespace, models: pathlib.Path) -> Context:
    where = args.build or ROOT / "build" / ("release" if args.emulated else "gpu")
    deps = args.deps.resolve() if args.deps else None
    if deps and not deps.is_dir():
        raise CheckError(f"--deps: there is no folder {deps}")
    return Context(ROOT, where.resolve(), deps, args.emulated, args.jobs, models, args.commit or find_commit(ROOT))


def check(args: argparse.Namespace) -> int:
    chosen = choose(all_steps(args.emulated), args.only)
    needs_models = any(step.name == "models-start" or step.name.startswith("bench-q") for step in chosen)
    keep = args.models or not needs_models
    models = (args.models or (models_folder() if needs_models else pathlib.Path("/nonexistent"))).absolute()
    try:
        context = make_context(args, models)
        report = Report(args.out or context.build / "gpu_check", {"commit": context.commit, "emulated": args.emulated,
                                                                   "machine": context.machine})  # fmt: skip
        clock = Clock(args.seconds or (7200 if args.emulated else 560))
        try:
            run_all(chosen, context, clock, report)
            bench.add_ratios(context, report)
        finally:
            bench.stop_background(context)
            report.write()
            print("\n" + report.summary(), end="", flush=True)
        return report.exit_code()
    finally:
        if not keep:
            shutil.rmtree(models, ignore_errors=True)


def stop(number, frame):
    raise KeyboardInterrupt


def main(arguments: list[str], text: str) -> int:
    signal.signal(signal.SIGTERM, stop)
    args = parse_arguments(arguments, text)
    try:
        if args.list:
            print("\n".join(f"{step.name:<24}{step.limit:6.0f} s" for step in all_steps(args.emulated)))
            return 0
        if args.pack:
            return pack.pack(args.pack)
        return check(args)
    except CheckError as error:
        print(f"gpu_check: {error}")
        return 2
    except KeyboardInterrupt:
        print("gpu_check: stopped")
        return 130
