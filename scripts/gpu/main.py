"""Arguments, and the order of the steps."""
import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

from gpu import bench, build, machine, pack, profile, programs, tests
from gpu.context import Context
from gpu.report import Report
from gpu.shell import CheckError
from gpu.steps import Clock, Step, choose, run_all

ROOT = pathlib.Path(__file__).resolve().parents[2]
MEMORY = pathlib.Path("/dev/shm")
MODEL_BYTES = 24_000_000_000
NEED_MODELS = ("first-bench", "bench-q", "bench-f", "times-", "ncu")
PARTS = ("both parts", "part 1", "part 2")


def all_steps(emulated: bool) -> list[Step]:
    """The first part tests what all else rests on and gives some figures; the second one measures, and tests the rest."""
    long = 3600.0
    prepare = [
        Step("environment", machine.examine, 30),
        Step("programs", programs.unpack, 30, ("environment",)),
        Step("googletest", build.build_googletest, 120, ("environment",)),
        Step("configure", build.configure, 120, ("googletest",)),
    ]
    everything = Step("build", build.build, long if emulated else 330, ("configure",))
    if emulated:
        return [*(step for step in prepare if step.name != "programs"), everything, *tests.emulated_steps()]
    environment = ("environment",)
    prepare[1:1] = [
        Step("models-start", lambda context, left: bench.start_models(context, left, bench.QUANTISED), 10, environment),
        Step("models-start-f16", lambda context, left: bench.start_models(context, left, ("f16",)), 10, environment, part=2),
    ]
    registers = Step("registers", build.kernel_resources, 30, ("configure",), part=2)
    probe = [Step("build-streams", build.build_streams, 60, ("configure",)), tests.streams_step()]
    return [*prepare, *probe, everything, *tests.first_steps(), *bench.first_steps(), tests.text_step(), *bench.later_steps(),
            *profile.profile_steps(), *tests.later_steps(), registers]  # fmt: skip


def of_part(steps: list[Step], part: int | None) -> list[Step]:
    return [step for step in steps if part is None or step.part in (0, part)]


def find_commit(root: pathlib.Path) -> str:
    git = shutil.which("git")
    if not git or not (root / ".git").exists():
        return "unknown"
    found = subprocess.run([git, "-C", str(root), "describe", "--always", "--exclude", "*", "--abbrev=12", "--dirty=+"],
                           capture_output=True, text=True, check=False)  # fmt: skip
    return found.stdout.strip() or "unknown"


def default_models(context: Context, part: int | None, needed: bool) -> pathlib.Path:
    """In memory where there is room, because disks may be slow; the folder of this run only. Parts share theirs."""
    shared = MEMORY / f"shoal-models-{os.getuid()}"
    kept = pack.size_of(shared) if part else 0  # by an earlier part
    roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free + kept > MODEL_BYTES
    if part and roomy:
        return shared
    if part or not needed:
        return context.build / "models"
    return pathlib.Path(tempfile.mkdtemp(prefix="shoal-models-", dir=MEMORY if roomy else None))


def parse_arguments(arguments: list[str], text: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check", description=text,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--pack", type=pathlib.Path, metavar="DIR", help="collect what a bare machine lacks, and end")
    parser.add_argument("--programs", metavar="ARCH", help="with --pack: build everything for this architecture "
                        "(90) and pack that, too")  # fmt: skip
    parser.add_argument("--deps", type=pathlib.Path, metavar="DIR", help="what --pack collected")
    parser.add_argument("--emulated", action="store_true", help="test the emulated plug-in; no benchmarks")
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help="for gpu_check.json, summary.txt and log.txt "
                        "(default: gpu_check in the build folder)")  # fmt: skip
    parser.add_argument("--seconds", type=float, help="for everything (default: 560; emulated: 7200)")
    parser.add_argument("--part", type=int, choices=(1, 2), help="the first or the second half of the steps, for "
                        "machines that are to be had for ten minutes at a time")  # fmt: skip
    parser.add_argument("--only", metavar="STEP,...", help="these steps; bench stands for all bench-..., and so on")
    parser.add_argument("--list", action="store_true", help="print the names of the steps, and end")
    parser.add_argument("--build", type=pathlib.Path, metavar="DIR", help="default: build/gpu; emulated: build/release")
    parser.add_argument("--models", type=pathlib.Path, metavar="DIR", help="where the 8B models are, or are written "
                        "and stay (default: a temporary folder; with --part one that stays, in /dev/shm or else in the "
                        "build folder)")  # fmt: skip
    parser.add_argument("-j", "--jobs", type=int, default=build.jobs())
    parser.add_argument("--commit", help="what is tested, for machines without git")
    return parser.parse_args(arguments)


def make_context(args: argparse.Namespace, models: pathlib.Path) -> Context:
    where = args.build or ROOT / "build" / ("release" if args.emulated else "gpu")
    deps = args.deps.resolve() if args.deps else None
    if deps and not deps.is_dir():
        raise CheckError(f"--deps: there is no folder {deps}")
    return Context(ROOT, where.resolve(), deps, args.emulated, args.jobs, models, args.commit or find_commit(ROOT))


def pack_all(args: argparse.Namespace) -> int:
    pack.pack(args.pack)
    if args.programs:
        context = make_context(argparse.Namespace(**{**vars(args), "deps": None}), pathlib.Path("/nonexistent"))
        programs.pack(context, args.programs, args.pack.resolve())
    return pack.report_size(args.pack.resolve())


def check(args: argparse.Namespace) -> int:
    chosen = choose(of_part(all_steps(args.emulated), args.part), args.only)
    needs_models = any(step.name == "models-start" or step.name.startswith(NEED_MODELS) for step in chosen)
    context = make_context(args, pathlib.Path("/nonexistent"))
    keep = args.models or args.part or not needs_models
    context.models = (args.models or default_models(context, args.part, needs_models)).absolute()
    try:
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
            shutil.rmtree(context.models, ignore_errors=True)


def stop(number, frame):
    raise KeyboardInterrupt


def main(arguments: list[str], text: str) -> int:
    signal.signal(signal.SIGTERM, stop)
    args = parse_arguments(arguments, text)
    try:
        if args.list:
            chosen = of_part(all_steps(args.emulated), args.part)
            print("\n".join(f"{step.name:<24}{step.limit:6.0f} s  {PARTS[step.part]}" for step in chosen))
            return 0
        if args.programs is not None and not args.pack:
            raise CheckError("--programs goes with --pack DIR, which it adds to; a run finds them in the DIR of --deps")
        if args.pack:
            return pack_all(args)
        return check(args)
    except CheckError as error:
        print(f"gpu_check: {error}")
        return 2
    except KeyboardInterrupt:
        print("gpu_check: stopped")
        return 130
