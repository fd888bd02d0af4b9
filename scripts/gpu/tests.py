"""The steps that test: programs of GoogleTest with the plug-in loaded, and compute-sanitizer."""
import dataclasses
import re
import time

from gpu import gtest, text
from gpu.context import LONG_RUN
from gpu.machine import NCCL_FOR_SHARED_GPUS, cuda_tool, library_in_packages, nccl_version, version_text
from gpu.report import FAILED, OK, Result
from gpu.shell import CheckError, Outcome, Skip, run
from gpu.steps import Step, good

PER_GPU = "SHOAL_CUDA_DEVICES_PER_GPU"
NEEDS = ("configure",)  # and what `Context.program` asks for
ALONE_LIMIT = 20.0  # of a test that is run again on its own
ALONE_SHARE = 0.35  # of a suite's limit is kept for that
# Where every kernel waits in vain, three tests of 135 waits of 50 ms, and what the GPU's context takes, are 23 s.
STREAMS_LIMIT = 40.0
SPEED_RESERVE = {1: 90.0}  # seconds that the tests of a part leave to its benchmarks; in the other part these come first


@dataclasses.dataclass(frozen=True)
class Suite:
    """Tests of one program."""

    program: str
    tests: str
    env: dict = dataclasses.field(default_factory=dict)
    with_plugin: bool = True


def run_gtest(context, suite: Suite, step: str, limit: float, prefix=()) -> tuple[Outcome, gtest.Tests]:
    program = context.program(suite.program, suite.with_plugin)
    command = [*prefix, program, f"--gtest_filter={suite.tests}", "--gtest_color=no"]
    outcome = run(command, limit, context.log(step), context.environment(**suite.env))
    return outcome, gtest.parse(outcome.output)


def run_suite(context, suite: Suite, step: str, limit: float) -> Result:
    end = time.monotonic() + limit
    outcome, tests = run_gtest(context, suite, step, limit * (1 - ALONE_SHARE))
    passed, detail = gtest.verdict(tests, outcome)
    data = {**tests.counts(), "environment": suite.env}
    if not passed:
        data["alone"] = run_alone(context, suite, step, tests, end)
        broken = [name for name, state in data["alone"].items() if state != "passed"]
        detail += f"; each alone: {len(data['alone']) - len(broken)} passed"
        detail += f", not {gtest.some(broken, 6)}" if broken else ""
    return Result("", OK if passed else FAILED, detail=detail, data=data)


def run_alone(context, suite: Suite, step: str, tests: gtest.Tests, end: float) -> dict:
    """A test that hangs or breaks the device fails all later ones of its process; this tells them apart."""
    log, env = context.log(step), context.environment(**suite.env)
    program = context.program(suite.program, suite.with_plugin)
    listed = run([program, f"--gtest_filter={suite.tests}", "--gtest_list_tests"], ALONE_LIMIT, log, env, append=True)
    done = set(tests.passed) | set(tests.skipped)
    states = {}
    for name in gtest.names_in_list(listed.output):
        if name in done:
            continue
        limit = min(ALONE_LIMIT, end - time.monotonic())
        if limit < 1:
            states[name] = "no time"
            continue
        command = [program, f"--gtest_filter={name}", "--gtest_color=no"]
        outcome = run(command, limit, log, env, append=True)
        states[name] = "passed" if outcome.status == 0 else outcome.ending()
    return states


def suite_step(name: str, limit: float, suite: Suite, part: int = 0, doubts=()) -> Step:
    reserve = SPEED_RESERVE.get(part, 0.0)
    return Step(name, lambda context, left: run_suite(context, suite, name, left), limit, NEEDS, reserve, part, doubts)


AT_ONCE = re.compile(r"^at once: (.+) (\d+) of (\d+)$", re.MULTILINE)


def run_streams(context, limit: float) -> Result:
    """Do kernels of different streams run at the same time? Collectives between virtual devices need that."""
    outcome, tests = run_gtest(context, Suite("test_cuda_streams", "*", {}, with_plugin=False), "streams", limit)
    passed, detail = gtest.verdict(tests, outcome)
    most = {}
    for kind, count, wanted in AT_ONCE.findall(outcome.output):
        if count == wanted:
            most[kind] = max(most.get(kind, 1), int(wanted))
    found = ", ".join(f"{kind} {count}" for kind, count in most.items()) or "none"
    return Result("", OK if passed else FAILED, detail=f"at once: {found}; {detail}",
                  data={**tests.counts(), "at_once": AT_ONCE.findall(outcome.output)})  # fmt: skip


def find_nccl(context) -> tuple[str, int]:
    file = context.machine.get("nccl") or library_in_packages("libnccl.so.2")
    if not file:
        raise Skip("no libnccl.so.2 in Python's packages (nvidia-nccl-cu13)")
    version = nccl_version(file)
    if version is None:
        raise CheckError(f"{file} does not tell its version")
    return file, version


def run_nccl_one_rank(context, limit: float) -> Result:
    """NCCL with one rank, which every version of it can do."""
    file, version = find_nccl(context)
    suite = Suite("test_cuda_gpu", "NcclOneRank.*", {"SHOAL_NCCL_LIBRARY": file})
    result = run_suite(context, suite, "nccl-one-rank", limit)
    return dataclasses.replace(result, detail=f"NCCL {version_text(version)}: {result.detail}")


def run_nccl(context, limit: float) -> Result:
    """The collectives by NCCL, several ranks on this one GPU."""
    file, version = find_nccl(context)
    if version < NCCL_FOR_SHARED_GPUS:
        raise Skip(f"NCCL {version_text(version)} cannot have several ranks on one GPU; 2.30 can")
    env = {PER_GPU: "8", "SHOAL_COMM": "nccl", "SHOAL_NCCL_LIBRARY": file, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    result = run_suite(context, Suite("test_collectives", "Plugin/*", env), "collectives-nccl", limit)
    return dataclasses.replace(result, detail=f"NCCL {version_text(version)}: {result.detail}")


SANITIZER_OTHER = r"COMPUTE-SANITIZER|[A-Z]+ SUMMARY|Target app|Warning: (?!Race)"
SANITIZER_ERROR = re.compile(rf"^========= (?!{SANITIZER_OTHER})(\S.*)$", re.MULTILINE)
SANITIZER_SUMMARY = re.compile(r"^========= (?:ERROR|RACECHECK) SUMMARY: (.*)$", re.MULTILINE)


# Of a CommError. Kernels are 10 to 50 times slower there, and those of several streams may run one after the other, so
# that ranks wait in vain.
LATE = "did not arrive within"


def failed_late(outcome: Outcome, tests: gtest.Tests) -> bool:
    """That is all that went wrong, in every test that did not pass."""
    broken = [*tests.failed, *([tests.unfinished] if tests.unfinished and not outcome.timed_out else [])]
    return bool(tests.failed) and all(LATE in gtest.own_text(outcome.output, name) for name in broken)


def sanitizer_verdict(outcome: Outcome, tests: gtest.Tests) -> Result:
    """One that the time limit ended is good where it had found nothing in at least one test."""
    errors = SANITIZER_ERROR.findall(outcome.output)
    summary = SANITIZER_SUMMARY.search(outcome.output)
    data = {**tests.counts(), "errors": errors[:20], "summary": summary.group(1) if summary else None}
    if errors:
        return Result("", FAILED, detail=f"{errors[0]} ({data['summary'] or 'and perhaps more'})", data=data)
    if outcome.timed_out and tests.passed and not tests.failed:
        return good(f"nothing found in the {len(tests.passed)} tests that ended within the limit", **data)
    if outcome.timed_out and not tests.failed:
        raise Skip(f"no test ended within {outcome.seconds:.0f} s")
    passed, detail = gtest.verdict(tests, outcome)
    if failed_late(outcome, tests):
        raise Skip(f"nothing found, but collectives were too slow under compute-sanitizer: {detail}")
    if passed and summary is None:
        return Result("", FAILED, detail=f"no summary of compute-sanitizer; {detail}", data=data)
    return Result("", OK if passed else FAILED, detail=f"{data['summary']}; {detail}", data=data)


def sanitizer_step(name: str, tool: str, limit: float, suite: Suite) -> Step:
    def work(context, left: float) -> Result:
        program = cuda_tool("compute-sanitizer")
        if not program:
            raise Skip("no compute-sanitizer here")
        prefix = [program, "--tool", tool, "--error-exitcode", "86", "--print-limit", "20"]
        outcome, tests = run_gtest(context, suite, name, left, prefix)
        if re.search(r"Device not supported|Unable to find injection library", outcome.output):
            raise Skip(f"compute-sanitizer does not work here: {outcome.last_line()}")
        return sanitizer_verdict(outcome, tests)

    return Step(name, work, limit, NEEDS, part=2)


def of_ops(names: str) -> str:
    return ":".join(f"PluginConformance.*/{op}" for op in names.split())


def streams_step() -> Step:
    return Step("streams", run_streams, STREAMS_LIMIT, ("build-streams",))


def first_steps() -> list[Step]:
    return [
        suite_step("devices", 60, Suite("test_devices", "Plugin/*"), 1),
        suite_step("ops", 110, Suite("test_ops", "PluginConformance.*"), 1),
        suite_step("kernels", 90, Suite("test_cuda_gpu", "*-NcclOneRank.*"), 1, ("streams",)),
        suite_step("collectives", 70, Suite("test_collectives", "Plugin*/*", {PER_GPU: "8"}), 1, ("streams",)),
        Step("nccl-one-rank", run_nccl_one_rank, 40, NEEDS, SPEED_RESERVE[1], 1),
    ]


def text_step() -> Step:
    return Step("text", text.same_text, 60, NEEDS, part=2)


def later_steps() -> list[Step]:
    """Behind the benchmarks of the second part, as far as time goes. Racecheck never sees a collective: it makes blocks
    that wait for each other wait for ever."""
    sixteen = {PER_GPU: "16", "SHOAL_PROPERTY_CASES": "400"}
    memcheck_ops = of_ops("add rms_norm soft_max get_rows set_rows rope top_k attention mul_mat mul_mat_id")
    race_ops = of_ops("rms_norm soft_max top_k attention")
    two = {PER_GPU: "2"}
    at_once = ("streams",)
    return [
        suite_step("reference", 100, Suite("test_models", "*Reference*", {PER_GPU: "8", **LONG_RUN}), 2, at_once),
        suite_step("meta", 90, Suite("test_property", "*/MetaProperty.*", sixteen), 2, at_once),
        suite_step("sched", 60, Suite("test_property", "*/SchedProperty.*", sixteen), 2),
        Step("collectives-nccl", run_nccl, 50, NEEDS, part=2),
        sanitizer_step("sanitizer-ops", "memcheck", 45, Suite("test_ops", memcheck_ops)),
        sanitizer_step("sanitizer-collectives", "memcheck", 30, Suite("test_collectives", "Plugin/*/2", two)),
        sanitizer_step("sanitizer-races", "racecheck", 30, Suite("test_ops", race_ops)),
    ]


def emulated_steps() -> list[Step]:
    """The same, with what the emulator does in a few minutes."""
    sixteen = {PER_GPU: "16", "SHOAL_PROPERTY_CASES": "20"}
    return [
        suite_step("devices", 300, Suite("test_devices", "Plugin/*")),
        suite_step("ops", 900, Suite("test_ops", "PluginConformance.*")),
        suite_step("collectives", 600, Suite("test_collectives", "Plugin*/*", {PER_GPU: "5"})),
        suite_step("meta", 900, Suite("test_property", "*/MetaProperty.*", sixteen)),
        suite_step("sched", 600, Suite("test_property", "*/SchedProperty.*", sixteen)),
        suite_step("reference", 2400, Suite("test_models", "*Reference*q8_0_2_even", {PER_GPU: "2"})),
        Step("text", text.same_text, 300, NEEDS),
    ]
