#!/usr/bin/env python3
"""Tests Ctrl-C with several processes. Process 0 handles the signal in the same way as a single process. The result is
the same if only process 0 gets the signal (`srun --pty`) or all processes get the signal (`srun`). mpirun ends all
processes with SIGTERM instead."""
import json
import os
import pathlib
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent))

from mpirun import PROGRAM, ROOT, Outcome, Run  # noqa: E402

MODEL = ROOT / "data/models/tiny-kjv-5m-q8_0.gguf"
LIMIT = 30.0


def in_terminal(command: list[str]) -> int:
    """Asks two questions in a new terminal and presses Ctrl-C during each answer. Prints the output after each input."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(command[0], command)
    seen = [""]

    def wait_for(is_there: Callable[[str], bool]) -> None:
        deadline = time.monotonic() + LIMIT
        while not is_there(seen[-1]):
            if time.monotonic() > deadline:
                raise TimeoutError(f"only {seen!r}")
            if select.select([terminal], [], [], 1)[0]:
                seen[-1] += os.read(terminal, 4096).decode(errors="replace")

    def press(keys: bytes) -> None:
        seen.append("")
        os.write(terminal, keys)

    wait_for(lambda text: text.endswith("> "))
    for question in (b"But the LORD\n", b"And God said\n"):
        press(question)
        wait_for(lambda text: len(text) > 200)  # the answer has started
        press(b"\x03")
        time.sleep(1)
        wait_for(lambda text: text.endswith("> "))
    press(b"/exit\n")
    _, status = os.waitpid(pid, 0)
    print(json.dumps({"seen": seen, "code": os.waitstatus_to_exitcode(status)}))
    return 0


class Interrupts(unittest.TestCase):
    def start(self, command: str, *flags: object, environment: dict | None = None, **more: object) -> Run:
        model = () if command == "bench-comm" else ("-m", MODEL)
        return Run([PROGRAM, command, *model, "--devices", "CPU0", *flags], 2, environment or {}, **more)

    def interrupted(self, ranks: tuple, wrapper: str = "") -> Outcome:
        endless = ("-p", "But the LORD", "-n", -1, "-c", 50_000, "--ignore-eos")
        with self.start("run", *endless, wrapper=wrapper) as run:
            run.wait_for_output()
            for rank in ranks:
                self.assertTrue(run.kill(rank, signal.SIGINT))
            if 0 not in ranks:
                time.sleep(2)
                self.assertEqual(sorted(run.ranks()), [0, 1])
                run.kill(0, signal.SIGINT)
            return run.finish(LIMIT)

    def test_chat_continues_after_ctrl_c(self):
        wrapper = f'[ "$OMPI_COMM_WORLD_RANK" != 0 ] || set -- {sys.executable} {HERE} --terminal "$@"'
        # With this slowdown, a token takes longer than the polling interval for signals. Sanitizers need less slowdown.
        slow = {"SHOAL_CPU_SLOWDOWN": os.environ.get("HOSTS_TEST_SLOWDOWN", 50)}
        with self.start("chat", "-n", -1, "-c", 50_000, "--ignore-eos", wrapper=wrapper, environment=slow) as run:
            outcome = run.finish(2 * LIMIT)
        self.assertEqual((outcome.code, outcome.errors(0), outcome.errors(1)), (0, [], []), outcome)
        self.assertEqual(outcome.json()["code"], 0)

    def test_signal_to_process_0_ends_the_run_normally(self):
        outcome = self.interrupted((0,))
        self.assertEqual((outcome.code, outcome.errors(0), outcome.errors(1)), (130, [], []), outcome)

    def test_another_process_may_finalize_mpi_slowly(self):
        source = ("#include <unistd.h>\nint PMPI_Finalize(void);\n"
                  "int MPI_Finalize(void) { PMPI_Finalize(); return sleep(20); }")
        with tempfile.TemporaryDirectory() as folder:
            library = pathlib.Path(folder) / "slow.so"
            compiler = ["cc", "-x", "c", "-shared", "-fPIC", "-Wl,-z,lazy", "-o", library, "-"]
            subprocess.run(compiler, input=source.encode(), check=True)
            wrapper = ('[ "$OMPI_COMM_WORLD_RANK" = 0 ] || '
                       f'export ASAN_OPTIONS="$ASAN_OPTIONS:verify_asan_link_order=0" LD_PRELOAD={library}')
            outcome = self.interrupted((0,), wrapper)
            self.assertEqual((outcome.code, outcome.errors(0), outcome.errors(1)), (130, [], []), outcome)
            # With a shorter time-out, the process that waits in MPI_Finalize fails.
            with self.start("run", "-p", "But the LORD", "-n", 2, wrapper=wrapper,
                            environment={"SHOAL_COMM_TIMEOUT": 6}) as run:
                outcome = run.finish(LIMIT)
        self.assertNotEqual(outcome.code, 0, outcome)
        self.assertIn("did not reach the end of the run within 6.000 s", "".join(outcome.errors(1)))

    def test_signal_to_all_processes_ends_the_run_normally(self):
        outcome = self.interrupted((1, 0))
        self.assertEqual((outcome.code, outcome.errors(0), outcome.errors(1)), (130, [], []), outcome)

    def test_signal_to_another_process_is_ignored(self):
        outcome = self.interrupted((1,))
        self.assertEqual((outcome.code, outcome.errors(1)), (130, []), outcome)

    def test_other_commands_report_the_signal_in_all_processes(self):
        for command in (("bench", "-p", 0, "-n", "8,50000", "-r", 1, "-o", "jsonl"),
                        ("bench-comm", "-b", 4, "-e", "256M", "-n", 1000)):
            with self.subTest(command[0]), self.start(*command) as run:
                run.wait_for_output()
                run.kill(0, signal.SIGINT)
                outcome = run.finish(LIMIT)
                line = f"shoal: error: process 0 ({run.host(0)}): ended by SIGINT (Ctrl-C)"
                self.assertEqual((outcome.errors(0), outcome.errors(1)), ([line], [line]), outcome)
                self.assertNotEqual(outcome.code, 0)

    def test_mpirun_ends_all_processes(self):
        with self.start("run", "-p", "But the LORD", "-n", -1, "-c", 50_000, "--ignore-eos") as run:
            run.wait_for_output()
            os.kill(run.child.pid, signal.SIGINT)
            outcome = run.finish(LIMIT)
        self.assertEqual(outcome.running, [])
        self.assertNotEqual(outcome.code, 0)
        lines = outcome.errors(0) + outcome.errors(1)
        self.assertTrue(lines)
        for line in lines:
            self.assertIn("SIGTERM", line)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--terminal"]:
        sys.exit(in_terminal(sys.argv[2:]))
    unittest.main()
