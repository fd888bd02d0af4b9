"""Measures the CPU time of other programs during a measurement, as `shoal probe` does. Child processes that have exited
do not count as other programs.

    others = Others()
    with others.watched():
        subprocess.run(...)
    others.line()   # "other programs kept up to 1.3 of 2 cores busy during 1 of 1 runs: ...", or "" on a quiet machine
"""
import contextlib
import os
import pathlib
import time
from collections.abc import Iterator

AT_REST = 0.2  # number of cores that system services and a terminal may use
TICKS = 0.03  # seconds of allowed error, because the system counts in ticks of 10 ms
BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq and steal; user includes guests
STAT, OWN_GROUP, GROUPS = "/proc/stat", "/proc/self/cgroup", "/sys/fs/cgroup"


def _lines(path: str | os.PathLike) -> list[str]:
    try:
        return pathlib.Path(path).read_text().splitlines()
    except OSError:
        return []


def usable_processors(own: str = OWN_GROUP, groups: str = GROUPS) -> int:
    """Number of processors that this process may use. The quotas of its control group and of the parent groups (version
    2) limit this number. A quota is rounded up: "150000 100000" is 2."""
    found = len(os.sched_getaffinity(0))
    place = next((line.removeprefix("0::") for line in _lines(own) if line.startswith("0::")), "/")
    group = pathlib.Path(groups, place.strip("/"))
    for folder in (group, *group.parents):
        quota, _, period = "".join(_lines(folder / "cpu.max")).partition(" ")
        if quota.isdigit() and period.isdigit():
            found = min(found, max(1, -(-int(quota) // int(period))))
    return found


def busy_seconds(stat: str, processors: set[int], ticks: int) -> float | None:
    """Busy CPU seconds of these processors since the system start. None if `stat` does not contain them."""
    rows = {words[0]: words[1:] for words in map(str.split, stat.splitlines()) if words}
    try:
        return sum(int(rows[f"cpu{one}"][column]) for one in processors for column in BUSY_COLUMNS) / ticks
    except (KeyError, IndexError, ValueError):
        return None


def _others_seconds() -> float | None:
    """CPU seconds of other programs since an arbitrary time. The result excludes the seconds of processors above the
    quota of this process."""
    processors = os.sched_getaffinity(0)
    busy = busy_seconds("\n".join(_lines(STAT)), processors, os.sysconf("SC_CLK_TCK"))
    if busy is None:
        return None
    spare = len(processors) - usable_processors()
    return busy - sum(os.times()[:4]) - spare * time.monotonic()


class Others:
    """CPU time of other programs during several runs."""

    def __init__(self):
        self.cores: list[float] = []  # for each run: number of cores that other programs used; 0 on an idle machine

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Measures the CPU time of other programs during one run."""
        began, before = time.monotonic(), _others_seconds()
        yield
        seconds, after = time.monotonic() - began, _others_seconds()
        used = after - before if before is not None and after is not None else 0.0
        self.cores.append(used / seconds if used > AT_REST * seconds + TICKS else 0.0)

    def line(self) -> str:
        disturbed = sum(one > 0 for one in self.cores)
        if not disturbed:
            return ""
        return (f"other programs kept up to {max(self.cores):.1f} of {len(os.sched_getaffinity(0))} cores busy during "
                f"{disturbed} of {len(self.cores)} runs: measure again while no other program runs")
