"""Runs a program under mpirun. Reports the output of each process, processes that still run, and files left behind.

    with Run([program, "run", ...], processes=3) as run:
        run.kill(1, signal.SIGKILL)                    # the process of rank 1
        outcome = run.finish(limit=7)                  # exit code of mpirun, stdout, stderr of every process
    outcome.leftovers                                  # files that the run left behind

Every process of a run, including mpirun, has a mark in its environment. The mark identifies the processes that must be
ended after the run. With `hosts` (scripts/hosts), the processes run on several hosts.
"""
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from hosts import network  # noqa: E402
from measuring.program import _die_with_parent  # noqa: E402

PROGRAM = pathlib.Path(os.environ.get("SHOAL_PROGRAM") or ROOT / "build/release/bin/shoal")
MARK = "HOSTS_TEST_RUN"
# Each process runs this shell script, which runs the program and exits with the exit code of the program.
WATCH = """trap : TERM
"$@" 2>"{folder}/stderr.$OMPI_COMM_WORLD_RANK"
code=$?
echo $code >"{folder}/code.$OMPI_COMM_WORLD_RANK"
cat "{folder}/stderr.$OMPI_COMM_WORLD_RANK" >&2
[ $code != 137 ] || kill -KILL $$
exit $code"""
# With these flags, mpirun and its daemons notice a cut connection within seconds instead of five minutes.
NOTICES = [word for name, value in (("time", 2), ("intvl", 1), ("probes", 2))
           for word in ("--mca", f"oob_tcp_keepalive_{name}", value)]
# mpirun prints this message if a process dies while the process connects to mpirun. PMIx 4.2.2 (Debian 12) then does
# not release a lock. mpirun waits forever for this lock at its end, before it removes its folder. A second SIGTERM or
# Ctrl-C ends mpirun.
PMIX_KEEPS_LOCK = "PMIX ERROR: UNREACHABLE in file"
SHARED = pathlib.Path("/dev/shm")


class RunError(Exception):
    """A run did not do what the test needs. The message is one line."""


@dataclasses.dataclass(frozen=True)
class Process:
    pid: int
    rank: int  # -1: mpirun or one of its daemons


@dataclasses.dataclass
class Outcome:
    code: int | None           # exit code of mpirun; None: mpirun did not end within the limit
    seconds: float             # seconds that finish() waited until no process was left; at most the limit
    ranks_seconds: float       # seconds until no rank was left; mpirun and its daemons may end later
    stdout: str
    words: str                 # stderr of mpirun, which includes the stderr of all processes
    stderr: dict[int, str]     # stderr of each rank
    running: list[int]         # ranks that did not end within the limit; -1 for mpirun's daemons
    leftovers: list[str]       # new files that no process uses
    codes: dict[int, int] = dataclasses.field(default_factory=dict)  # exit codes of watched ranks that ended

    def errors(self, rank: int) -> list[str]:
        """Returns the error lines of a process."""
        return [line for line in self.stderr.get(rank, "").splitlines() if line.startswith("shoal: error: ")]

    def json(self) -> dict:
        """The JSON object that process 0 wrote. Raises RunError."""
        if self.code != 0:
            lines = [line.strip() for line in self.words.splitlines() if line.startswith("shoal: error: ")]
            lines = lines or [line.strip() for line in self.words.splitlines() if line.strip(" -")] or ["no message"]
            raise RunError(f"mpirun exited with {self.code}: {lines[0]}")
        try:
            return json.loads(self.stdout)
        except json.JSONDecodeError as error:
            raise RunError(f"stdout is not a JSON object ({error}): {self.stdout[:80]!r}") from None


def _environment(pid: int) -> dict[bytes, bytes]:
    with contextlib.suppress(OSError):
        words = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return dict(word.split(b"=", 1) for word in words if b"=" in word)
    return {}


def _is_zombie(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    return True


def _files() -> set[str]:
    """Returns the files that connect the processes of one computer: shared memory and session folders of Open MPI."""
    found = {str(path) for path in SHARED.iterdir()}
    for session in pathlib.Path(tempfile.gettempdir()).glob("ompi.*"):
        found |= {str(path) for path in session.iterdir()} if session.is_dir() else set()
    return found


def _used() -> str:
    """Returns one text with the ids and the mapped files of all processes."""
    words = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        words.append(f"pid.{folder.name}\n")
        with contextlib.suppress(OSError):
            words.append((folder / "maps").read_text(errors="replace"))
    return "".join(words)


class Run:
    """A run of mpirun, started by the constructor. Its processes are ended at the end of the `with` statement. `wrapper`:
    lines of bash that each process runs before `exec`, such as a `cd` to a folder for its rank. `watched`: whether to
    record exit codes and stderr of all ranks, even if mpirun has lost the host of a rank. mpirun then gets the stderr
    of a process only at the end of the process. `flags` are passed to mpirun. Raises RunError."""

    def __init__(self, command: Sequence[object], processes: int, environment: Mapping[str, object] | None = None,
                 hosts: network.Hosts | None = None, wrapper: str = "", watched: bool = False,
                 flags: Sequence[object] = ()):
        self.processes, self.hosts = processes, hosts
        self.mark = uuid.uuid4().hex
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="shoal-run-"))
        self.before = _files()
        words = [str(word) for word in command]
        self.program = pathlib.Path(words[0]).name
        if watched:
            wrapper += "\n" + WATCH.format(folder=self.folder)
        if wrapper:
            words = ["bash", "-c", f'{wrapper}\nexec "$@"', "bash", *words]
        # mpirun writes copies of the output to these files, and also forwards all output.
        flags = ["--output-filename", self.folder / "out", *flags]
        values = {**os.environ, **{name: str(value) for name, value in (environment or {}).items()}, MARK: self.mark}
        if hosts is None:
            flags = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", processes, *flags]
            line = ["mpirun", *map(str, flags), *words]
        else:
            if processes % hosts.count != 0:
                raise RunError(f"{processes} processes on {hosts.count} hosts")
            line = hosts.mpirun(words, processes // hosts.count, [*NOTICES, *flags])
            values = {**hosts.environment(), **values}
            values.update({name: hosts.environment()[name] for name in ("HOSTS_UP_NAME", "HOSTS_UP_CORES")})
        if shutil.which(line[0]) is None:
            raise RunError(f"{line[0]} not found; scripts/install_deps --mpi installs it")
        with open(self.folder / "stdout", "wb") as stdout, open(self.folder / "stderr", "wb") as stderr:
            self.began = time.monotonic()
            self.child = subprocess.Popen(line, env=values, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
                                          start_new_session=True, preexec_fn=_die_with_parent)

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_unused: object) -> None:
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def all(self) -> Iterator[Process]:
        """Returns all live processes of the run. mpirun's own processes have rank -1."""
        mark = self.mark.encode()
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            pid = int(folder.name)
            environment = _environment(pid)
            if environment.get(MARK.encode()) != mark or _is_zombie(pid):
                continue
            yield Process(pid, int(environment.get(b"OMPI_COMM_WORLD_RANK", b"-1")))

    def ranks(self) -> dict[int, int]:
        """Returns the process id of each rank that already runs the program."""
        found = {}
        for process in self.all():
            with contextlib.suppress(OSError):
                if process.rank >= 0 and pathlib.Path(os.readlink(f"/proc/{process.pid}/exe")).name == self.program:
                    found[process.rank] = process.pid
        return found

    def host(self, rank: int) -> str:
        if self.hosts is None:
            return socket.gethostname()
        return self.hosts.host(rank * self.hosts.count // self.processes)

    def wait_for(self, ranks: int, limit: float = 20) -> None:
        """Waits until `ranks` ranks run the program. Raises RunError."""
        deadline = time.monotonic() + limit
        while len(self.ranks()) < ranks:
            if self.child.poll() is not None or time.monotonic() > deadline:
                raise RunError(f"{len(self.ranks())} of {ranks} processes have begun: {self._text('stderr').strip()[-200:]}")
            time.sleep(0.01)

    def wait_for_output(self, limit: float = 30) -> None:
        """Waits until process 0 has written some output. Raises RunError."""
        deadline = time.monotonic() + limit
        while not (self.folder / "stdout").stat().st_size:
            if self.child.poll() is not None or time.monotonic() > deadline:
                raise RunError(f"process 0 has written nothing: {self._text('stderr').strip()[-200:]}")
            time.sleep(0.02)

    def have_mapped(self, path: pathlib.Path) -> bool:
        """Whether each rank has mapped the file. Ranks map the model after they know the names of all hosts."""
        def maps(pid: int) -> bool:
            with contextlib.suppress(OSError):
                return path.name in pathlib.Path(f"/proc/{pid}/maps").read_text(errors="replace")
            return False

        ranks = self.ranks()
        return len(ranks) == self.processes and all(map(maps, ranks.values()))

    def wait_until_mapped(self, path: pathlib.Path, limit: float = 20) -> bool:
        """Waits for have_mapped(). Returns False if the run ends first, or after `limit` seconds."""
        deadline = time.monotonic() + limit
        while not self.have_mapped(path):
            if self.child.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def sleep_until(self, seconds: float) -> None:
        """Sleeps until `seconds` after the start of mpirun."""
        time.sleep(max(0.0, self.began + seconds - time.monotonic()))

    def kill(self, rank: int, number: signal.Signals) -> bool:
        """Sends a signal to a rank. Returns False if the rank does not run yet or no longer runs."""
        pid = self.ranks().get(rank)
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            return True
        return False

    def finish(self, limit: float) -> Outcome:
        """Waits until mpirun and every process have ended, but at most `limit` seconds. Then ends the remaining
        processes. If mpirun waits for the lock of PMIx after the end of all ranks, terminates mpirun."""
        start = time.monotonic()
        code, ranks_seconds = None, 0.0
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self.child.wait(0.04)
            seconds = time.monotonic() - start
            running = sorted({process.rank for process in self.all()})
            if any(rank >= 0 for rank in running):
                ranks_seconds = seconds
            if (code is not None and not running) or seconds > limit:
                break
            if running == [-1] and seconds > ranks_seconds + 1 and PMIX_KEEPS_LOCK in self._text("stderr"):
                self.child.terminate()
                for session in pathlib.Path(tempfile.gettempdir()).glob(f"ompi.*/pid.{self.child.pid}"):
                    shutil.rmtree(session, ignore_errors=True)
            time.sleep(0.02)
        stderr = {}
        for path in (self.folder / "out").glob("*/rank.*/stderr"):
            stderr[int(path.parent.name.removeprefix("rank."))] = path.read_text(errors="replace")
        for path in self.folder.glob("stderr.*"):
            stderr[int(path.suffix[1:])] = path.read_text(errors="replace")
        codes = {int(path.suffix[1:]): int(text) for path in self.folder.glob("code.*") if (text := path.read_text())}
        self.end()
        leftovers = self._leftovers()
        for path in leftovers:
            if pathlib.Path(path).name.startswith("vader_segment"):  # Open MPI file of a process that end() killed
                pathlib.Path(path).unlink(missing_ok=True)
        return Outcome(code, seconds, ranks_seconds, self._text("stdout"), self._text("stderr"), stderr, running, leftovers,
                       codes)

    def end(self) -> None:
        for _ in range(50):  # a daemon may start another process during the loop
            left = list(self.all())
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(0.02)
            if not left:
                return

    def _text(self, name: str) -> str:
        return (self.folder / name).read_text(errors="replace")

    def _leftovers(self) -> list[str]:
        """Returns files that were created since the run began and that no process uses. Files in use belong to other runs."""
        made = _files() - self.before
        if not made:
            return []
        used = _used()
        return sorted(path for path in made if path not in used and f"{pathlib.Path(path).name}\n" not in used
                      and pathlib.Path(path).exists())


def run(command: Sequence[object], processes: int, limit: float = 120, **options: object) -> Outcome:
    """Runs the command until it ends. Raises RunError if it does not end in time."""
    with Run(command, processes, **options) as one:
        outcome = one.finish(limit)
    if outcome.code is None:
        raise RunError(f"the run did not end within {limit:g} s; ranks {outcome.running} were running")
    return outcome
