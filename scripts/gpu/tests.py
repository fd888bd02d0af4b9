"""The test steps: GoogleTest programs that load the plug-in, and compute-sanitizer."""
import dataclasses
import re
import time

from gpu import gtest
from gpu.context import LAZY, LONG_RUN, PER_GPU
from gpu.machine import cuda_tool, library_in_packages
from gpu.report import FAILED, OK, Result
from gpu.shell import Outcome, Skip, run
from gpu.steps import NEEDS, Step, good

ALONE_LIMIT = 20.0  # seconds for the repetition of one test
ALONE_SHARE = 0.35  # fraction of a suite's time limit that is reserved for repetitions
# Limit in seconds. The worst case takes 23 s: in each of three tests, 135 waits time out after 50 ms. The
# time also includes the start of the GPU's context.
STREAMS_LIMIT = 40.0
# This test has a limit on wall-clock time, which a slow virtual machine may exceed. A step passes if only this test
# fails.
NOISE = {"P2pFailure.EndsLaterWorkAtOnce"}
SANITIZER_ERROR = re.compile(r"^========= (?!COMPUTE-SANITIZER|[A-Z]+ SUMMARY|Target app|Warning: (?!Race))(\S.*)$",
                             re.MULTILINE)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Suite:
    """Tests of one program: a filter for test names, and an environment."""

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
    if not passed and outcome.status == 1 and tests.failed and set(tests.failed) <= NOISE:
        return good(f"{detail} (noise: only tests of wall-clock time failed)", **data)
    if not passed:
        data["alone"] = run_alone(context, suite, step, tests, end)
        broken = [name for name, state in data["alone"].items() if state != "passed"]
        detail += f"; run one by one: {len(data['alone']) - len(broken)} passed"
        detail += f", but not {gtest.some(broken, 6)}" if broken else ""
    return Result("", OK if passed else FAILED, detail=detail, data=data)


def run_alone(context, suite: Suite, step: str, tests: gtest.Tests, end: float) -> dict:
    """Repeats failed and missing tests, each in a separate process. In a shared process, a test may fail because an
    earlier test hung or broke the device."""
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
        outcome = run([program, f"--gtest_filter={name}", "--gtest_color=no"], limit, log, env, append=True)
        states[name] = "passed" if outcome.status == 0 else outcome.ending()
    return states


def suite_step(name: str, limit: float, suite: Suite, emulated: Suite | None, *doubts: str) -> Step:
    """Makes the step of a suite. `emulated`: the suite for the emulator; None: the emulator skips the step."""
    def work(context, left: float) -> Result:
        return run_suite(context, emulated if context.emulated else suite, name, left)

    return Step(name, work, limit, NEEDS, ("smoke", *doubts), emulated is not None)


AT_ONCE = re.compile(r"^at once: (.+) (\d+) of (\d+)$", re.MULTILINE)


def run_streams(context, limit: float) -> Result:
    """Checks that kernels of different streams run concurrently. Collectives between virtual devices need this."""
    context.doubts["streams"] = "note that the step streams failed"
    outcome, tests = run_gtest(context, Suite("test_cuda_streams", "*", {}, with_plugin=False), "streams", limit)
    passed, detail = gtest.verdict(tests, outcome)
    if passed:
        del context.doubts["streams"]
    most = {}
    for kind, count, wanted in AT_ONCE.findall(outcome.output):
        if count == wanted:
            most[kind] = max(most.get(kind, 1), int(wanted))
    found = ", ".join(f"{kind} {count}" for kind, count in most.items()) or "none"
    return Result("", OK if passed else FAILED, detail=f"at once: {found}; {detail}",
                  data={**tests.counts(), "at_once": AT_ONCE.findall(outcome.output)})  # fmt: skip


def run_nccl_one_rank(context, limit: float) -> Result:
    """Tests NCCL with one rank, which every version of NCCL supports."""
    file = context.machine.get("nccl") or library_in_packages("libnccl.so.2")
    if not file:
        raise Skip("no libnccl.so.2 in Python's packages (nvidia-nccl-cu13)")
    suite = Suite("test_cuda_gpu", "NcclOneRank.*", {"SHOAL_NCCL_LIBRARY": file, **LAZY})
    return run_suite(context, suite, "nccl-one-rank", limit)


SANITIZER_SUMMARY = re.compile(r"^========= (?:ERROR|RACECHECK) SUMMARY: (.*)$", re.MULTILINE)


def sanitizer_verdict(outcome: Outcome, tests: gtest.Tests) -> Result:
    """Returns the result of a run with compute-sanitizer. A run that reached its time limit passes if at least one test
    ended and the tool found no error."""
    errors = SANITIZER_ERROR.findall(outcome.output)
    summary = SANITIZER_SUMMARY.search(outcome.output)
    data = {**tests.counts(), "errors": errors[:20], "summary": summary.group(1) if summary else None}
    if errors:
        return Result("", FAILED, detail=f"{errors[0]} ({data['summary'] or 'and perhaps more'})", data=data)
    if outcome.timed_out and not tests.failed:
        if not tests.passed:
            raise Skip(f"no test ended within {outcome.seconds:.0f} s")
        return good(f"nothing found in the {len(tests.passed)} tests that ended within the limit", **data)
    passed, detail = gtest.verdict(tests, outcome)
    if passed and summary is None:
        return Result("", FAILED, detail=f"no summary of compute-sanitizer; {detail}", data=data)
    return Result("", OK if passed else FAILED, detail=f"{data['summary']}; {detail}", data=data)


def sanitizer_step(name: str, tool: str, limit: float, tests: str) -> Step:
    """A step with compute-sanitizer. The tool patches every loaded kernel, so kernels are loaded lazily. The tests
    exclude collectives, because collectives hang under racecheck and time out under memcheck."""
    def work(context, left: float) -> Result:
        program = cuda_tool("compute-sanitizer")
        if not program:
            raise Skip("no compute-sanitizer here")
        prefix = [program, "--tool", tool, "--error-exitcode", "86", "--print-limit", "20"]
        outcome, found = run_gtest(context, Suite("test_ops", tests, LAZY), name, left, prefix)
        if re.search(r"Device not supported|Unable to find injection library", outcome.output):
            raise Skip(f"compute-sanitizer does not work here: {outcome.last_line()}")
        return sanitizer_verdict(outcome, found)

    return Step(name, work, limit, NEEDS, ("smoke",), emulated=False)


def of_ops(names: str) -> str:
    return ":".join(f"PluginConformance.*/{op}" for op in names.split())


def streams_step() -> Step:
    return Step("streams", run_streams, STREAMS_LIMIT, NEEDS, emulated=False)


def first_step() -> Step:
    """Makes the step that tests kernels whose instructions only hardware can test."""
    kernels = "*Wgmma*:Mma.*:*P2pProduct*:*/P2p.*:*P2pNorm*"
    return suite_step("kernels-first", 45, Suite("test_cuda_gpu", kernels), Suite("test_cuda", "Wgmma.*:Mma.*:*P2pProduct*"),
                      "streams")  # fmt: skip


def later_steps() -> list[Step]:
    """Makes the steps that run if enough time remains. The suites for the emulator are shorter, because CTest runs the
    whole suites on the emulator."""
    two, five = {PER_GPU: "2"}, {PER_GPU: "5"}
    two_ranks = {**two, "SHOAL_PROPERTY_RANKS": "2"}
    cases, few = {**two_ranks, "SHOAL_PROPERTY_CASES": "200"}, {**two_ranks, "SHOAL_PROPERTY_CASES": "40"}
    all_ops = "PluginConformance.*"
    references = ":".join(f"*/Reference.*_{mesh}" for mesh in ("1_even", "2_even", "2_3_1", "2_1_9", "2_30_25"))
    return [
        suite_step("devices", 40, Suite("test_devices", "Plugin/*", LAZY), Suite("test_devices", "Plugin/*")),
        suite_step("ops", 80, Suite("test_ops", all_ops, LAZY), Suite("test_ops", of_ops("rms_norm soft_max rope"))),
        suite_step("kernels", 70, Suite("test_cuda_gpu", "*-NcclOneRank.*"), None, "streams"),
        suite_step("collectives", 50, Suite("test_collectives", "Plugin*/*", five),
                   Suite("test_collectives", "Plugin/*/2", two), "streams"),
        Step("nccl-one-rank", run_nccl_one_rank, 30, NEEDS, ("smoke",), emulated=False),
        suite_step("reference", 60, Suite("test_models", references, {**two, **LONG_RUN}), None, "streams"),
        suite_step("meta", 40, Suite("test_property", "*/MetaProperty.*", cases),
                   Suite("test_property", "*/MetaProperty.*", few), "streams"),
        suite_step("sched", 30, Suite("test_property", "*/SchedProperty.*", cases),
                   Suite("test_property", "*/SchedProperty.*", few)),
        sanitizer_step("sanitizer-ops", "memcheck", 40, of_ops("add rms_norm soft_max get_rows set_rows rope top_k attention "
                                                               "mul_mat mul_mat_id")),
        sanitizer_step("sanitizer-races", "racecheck", 30, of_ops("rms_norm soft_max top_k attention")),
    ]  # fmt: skip
