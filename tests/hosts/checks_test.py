#!/usr/bin/env python3
"""Tests that faults.py and references.py detect the errors of programs that misbehave on purpose."""
import json
import os
import pathlib
import signal
import sys
import tempfile
import time
import types
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import faults  # noqa: E402
import gguf  # noqa: E402
import mpirun  # noqa: E402
import references  # noqa: E402
from mpirun import Outcome, Run  # noqa: E402

PYTHON = os.path.realpath(sys.executable)
KILLED = "mpirun noticed that process rank 1 with PID 0 on node here exited on signal 9 (Killed)."
SAYS = "shoal: error: process 1 (here) has died"


def outcome(code: int | None = 1, stderr: dict | None = None, words: str = "", running: tuple = (), leftovers: tuple = (),
            ranks_seconds: float = 1, seconds: float = 1, codes: dict | None = None) -> Outcome:
    return Outcome(code, seconds, ranks_seconds, "", words, stderr if stderr is not None else {0: SAYS, 2: SAYS}, list(running),
                   list(leftovers), codes or {})


class Ended(unittest.TestCase):
    """Tests of faults.Faults.ended for three ranks, after rank 1 was killed."""

    def wrong(self, found: Outcome, silent: bool = False, **more) -> list[str]:
        options = types.SimpleNamespace(processes=3, seed=1, silent=silent)
        run = types.SimpleNamespace(processes=3, host=lambda rank: "here")
        return faults.Faults(options, pathlib.Path(), None).ended(run, found, **{"victim": 1, **more})

    def test_accepts_runs_that_end_correctly(self):
        self.assertEqual(self.wrong(outcome()), [])
        self.assertEqual(self.wrong(outcome(stderr={}, words=KILLED), early=True), [])
        self.assertEqual(self.wrong(outcome(stderr={}, words=KILLED), silent=True), [])
        self.assertEqual(self.wrong(outcome(leftovers=("/dev/shm/vader_segment.here.d1.1",)), early=True), [])
        told = {0: "shoal: error: process 0 (here) was ended by SIGTERM", 2: SAYS}
        self.assertEqual(self.wrong(outcome(stderr=told, words=KILLED)), [])
        self.assertEqual(self.wrong(outcome(stderr={0: SAYS}, codes={2: 0})), [])
        unknown = {0: "shoal: error: process 1 (unknown host) has been silent", 2: SAYS}
        self.assertEqual(self.wrong(outcome(stderr=unknown, words=KILLED)), [])
        tells = {0: "shoal: error: process 0 (here): [sum] process 1 (here) did not answer", 2: SAYS}
        self.assertEqual(self.wrong(outcome(stderr=tells)), [])

    def test_reports_each_error_once(self):
        for what, found in {
            "mpirun exited with 0": outcome(code=0),
            "still running: mpirun": outcome(code=None),
            "still running: rank 2": outcome(running=(2,)),
            "left behind: /dev/shm/a": outcome(leftovers=("/dev/shm/a",)),
            "left behind: /dev/shm/vader": outcome(leftovers=("/dev/shm/vader_segment.here.d1.1",)),
            "the last rank ended after 8.0 s": outcome(ranks_seconds=8),
            "mpirun ended after 8.0 s": outcome(seconds=8),
            "rank 2 says nothing": outcome(stderr={0: SAYS}, words=KILLED, codes={2: 1}),
            "rank 0 wrote 2 lines": outcome(stderr={0: f"{SAYS}\n{SAYS}", 2: SAYS}),
            "rank 2 names no process": outcome(stderr={0: SAYS, 2: "shoal: error: it failed"}),
            "rank 2 names a wrong process or host": outcome(stderr={0: SAYS, 2: "shoal: error: process 1 (there) has died"}),
            "rank 0 names a wrong process or host": outcome(stderr={0: "shoal: error: process 1 (unknown host) has died", 2: SAYS}),
            "rank 2 does not name 1": outcome(stderr={0: SAYS, 2: "shoal: error: process 0 (here) has died"}),
        }.items():
            with self.subTest(what):
                wrong = self.wrong(found)
                self.assertEqual(len(wrong), 1, wrong)
                self.assertIn(what, wrong[0])

    def test_rejects_silent_ranks_without_reason(self):
        self.assertEqual(len(self.wrong(outcome(stderr={}), early=True)), 2)
        self.assertEqual(len(self.wrong(outcome(stderr={}, words=KILLED), victim=2, early=True)), 2)
        told = {0: "shoal: error: process 0 (here) was ended by SIGTERM", 2: SAYS}
        self.assertEqual(len(self.wrong(outcome(stderr=told))), 1)

    def test_requires_the_expected_text(self):
        self.assertEqual(self.wrong(outcome(), says="has died"), [])
        self.assertEqual(len(self.wrong(outcome(), says="version")), 1)


class Runs(unittest.TestCase):
    """Real runs of a program that does not use MPI."""

    def start(self, program: str, **more) -> Run:
        return Run([PYTHON, "-c", f"import os, sys, time, signal\nrank = os.environ['OMPI_COMM_WORLD_RANK']\n{program}"], 2, **more)

    def test_separates_output_of_each_rank(self):
        with self.start("print('{}') if rank == '0' else 0; sys.exit(f'shoal: error: I am {rank}')") as run:
            found = run.finish(20)
        self.assertEqual((found.code, found.stdout), (1, "{}\n"))
        self.assertEqual({rank: found.errors(rank) for rank in (0, 1)},
                         {0: ["shoal: error: I am 0"], 1: ["shoal: error: I am 1"]})
        with self.assertRaisesRegex(mpirun.RunError, "mpirun exited with 1: shoal: error: I am"):
            found.json()

    def test_json_must_be_one_object(self):
        with self.start("print('{}')") as run, self.assertRaisesRegex(mpirun.RunError, "stdout is not a JSON object"):
            run.finish(20).json()

    def test_names_a_killed_rank(self):
        with self.start("time.sleep(60)") as run:
            run.wait_for(2)
            self.assertTrue(run.kill(1, signal.SIGKILL))
            found = run.finish(20)
        self.assertEqual((found.code, found.running), (137, []))
        self.assertEqual(faults.MPIRUN_NAMES.search(found.words)[1], "1")

    def test_records_exit_codes_of_watched_ranks(self):
        """In the second run, rank 1 is killed, and mpirun ends the silent rank 0. Both exit codes are recorded."""
        with self.start("print('shoal: error: I am', rank, sys.argv[1], file=sys.stderr)\nsys.exit(3 * (1 - int(rank)))",
                        watched=True, wrapper="set -- \"$@\" more") as run:
            found = run.finish(20)
        self.assertEqual((found.codes[0], found.errors(0), found.code), (3, ["shoal: error: I am 0 more"], 3))
        with self.start("signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); time.sleep(60)", watched=True) as run:
            run.wait_for(2)
            time.sleep(0.5)
            self.assertTrue(run.kill(1, signal.SIGKILL))
            found = run.finish(20)
        self.assertEqual((found.code, found.codes), (137, {0: 9, 1: 137}))
        self.assertEqual(faults.MPIRUN_NAMES.search(found.words)[1], "1")

    def test_ends_processes_that_outlive_the_run(self):
        # Rank 1 starts a child process that mpirun does not know, and exits.
        with self.start("os.fork() or (os.setsid(), time.sleep(60)) if rank == '1' else 0") as run:
            found = run.finish(3)
            self.assertIn(1, found.running)
            self.assertEqual(list(run.all()), [])

    def test_reports_leftover_files(self):
        name = f"shoal-test-{os.getpid()}"
        try:
            with self.start(f"rank == '0' and open('/dev/shm/{name}', 'w').close()") as run:
                self.assertEqual(run.finish(20).leftovers, [f"/dev/shm/{name}"])
        finally:
            os.unlink(f"/dev/shm/{name}")

    def test_wrapper_can_use_the_rank(self):
        with tempfile.TemporaryDirectory() as folder:
            for rank in ("0", "1"):
                os.mkdir(f"{folder}/{rank}")
            with self.start("sys.stderr.write(os.getcwd())", wrapper=f"cd {folder}/$OMPI_COMM_WORLD_RANK") as run:
                found = run.finish(20)
            self.assertEqual(found.stderr, {0: f"{folder}/0", 1: f"{folder}/1"})

    def test_with_statement_ends_all_processes(self):
        with self.start("signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)") as run:
            run.wait_for(2)
        time.sleep(0.1)
        self.assertEqual(list(run.all()), [])


class Answers(unittest.TestCase):
    def wrong(self, answer: dict) -> list[str]:
        question = references.Question(pathlib.Path(), [1], [], {0: 1.0, 1: -2.0}, 1e-9, [5, 6, 7])
        return question.wrong(answer, references.nmse)

    def test_distinguishes_right_and_wrong_answers(self):
        logits = [[1, -2.00001], [0, 1.00001]]
        self.assertEqual(self.wrong({"tokens": [5, 6, 7], "top_logits": logits}), [])
        for answer in ({"tokens": [5, 6, 8], "top_logits": logits}, {"tokens": [5, 6], "top_logits": logits},
                       {"tokens": [5, 6, 7], "top_logits": logits[:1]},
                       {"tokens": [5, 6, 7], "top_logits": [[1, -2.0002], [0, 1.0]]},
                       json.loads('{"tokens": [5, 6, 7], "top_logits": [[1, NaN], [0, 1.0]]}')):
            with self.subTest(answer):
                self.assertEqual(len(self.wrong(answer)), 1)
        nothing = float("nan")
        self.assertFalse(references.largest({0: nothing, 1: 0.0}, {0: 1.0, 1: 0.0}) <= 1)
        self.assertFalse(references.largest({0: 1.0, 1: nothing}, {0: 1.0, 1: 0.0}) <= 1)

    def test_meshes_cover_one_to_four_processes(self):
        meshes = references.meshes()
        self.assertEqual({mesh.processes for mesh in meshes}, {1, 2, 3, 4})
        self.assertEqual(len({mesh.name for mesh in meshes}), len(meshes))
        self.assertLessEqual(set(references.QUICK_MESHES), {mesh.name for mesh in meshes})

    def test_reads_reference_files(self):
        file = gguf.File(mpirun.ROOT / "tests/models/references/llama.gguf")
        self.assertEqual((file.keys["reference.case"], file.keys["reference.context"]), ("llama", 320))
        self.assertEqual((file.shape("ids.7"), len(file.values("logits.7"))), ([7], 7 * file.shape("logits.7")[0]))


if __name__ == "__main__":
    unittest.main()
