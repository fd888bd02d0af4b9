"""Whether measurements had the machine to themselves: the CPU time that other programs used meanwhile, as `shoal probe`
counts it (machine/probe_interference.h). Children that have ended count as ours.

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

AT_REST = 0.2  # cores that system services and a terminal may keep busy
TICKS = 0.03  # seconds: the system counts in ticks of 10 ms
BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq and steal; guests are part of user
STAT, GROUPS, MOUNTS = "/proc/stat", "/proc/self/cgroup", "/proc/self/mountinfo"


def _numbers(path: pathlib.Path) -> list[int]:
    try:
        return [int(word) for word in path.read_text().split()]
    except (OSError, ValueError):
        return []  # there is no such file, or it says "max"


def _quota(group: pathlib.Path) -> int | None:
    """Processors' worth of time that a control group gives, rounded up; "400000 100000" are 4. Version 1 has two files
    for it, and -1 for no limit."""
    found = _numbers(group / "cpu.max") or _numbers(group / "cpu.cfs_quota_us") + _numbers(group / "cpu.cfs_period_us")
    most, period = found if len(found) == 2 else (0, 0)
    return max(1, -(-most // period)) if most > 0 and period > 0 else None


def _lines(path: str) -> list[str]:
    try:
        return pathlib.Path(path).read_text().splitlines()
    except OSError:
        return []


def _groups(own: str, mounts: str) -> Iterator[pathlib.Path]:
    """Folders of this process's control groups that limit processors, of both versions, and of their parents."""
    places = [line.split(":", 2) for line in _lines(own) if line.count(":") >= 2]
    for line in _lines(mounts):
        before, _, after = line.partition(" - ")
        kind, *_, options = after.split() or ["", ""]
        is_cpu = kind == "cgroup" and "cpu" in options.split(",")
        if not (is_cpu or kind == "cgroup2"):
            continue
        root, point = before.split()[3:5]
        for _, controllers, place in places:
            if is_cpu == ("cpu" in controllers.split(",")) and (is_cpu or not controllers):
                below = os.path.relpath(place, root)
                parts = () if below.startswith("..") else pathlib.PurePath(below).parts
                yield from (pathlib.Path(point, *parts[:count]) for count in range(len(parts) + 1))


def usable_processors(own: str = GROUPS, mounts: str = MOUNTS) -> int:
    """Those that this process may run on, and no more than the quotas of its control groups and of their parents."""
    found = len(os.sched_getaffinity(0))
    for group in _groups(own, mounts):
        found = min(found, _quota(group) or found)
    return found


def busy_seconds(stat: str, processors: set[int], ticks: int) -> float | None:
    """CPU seconds in which these processors were at work since the system started; None if it does not say."""
    rows = {words[0]: words[1:] for words in map(str.split, stat.splitlines()) if words}
    try:
        return sum(int(rows[f"cpu{one}"][column]) for one in processors for column in BUSY_COLUMNS) / ticks
    except (KeyError, IndexError, ValueError):
        return None


def _others_seconds() -> float | None:
    """CPU seconds of other programs, from any beginning. What lies beyond a quota of ours does not count."""
    processors = os.sched_getaffinity(0)
    busy = busy_seconds("\n".join(_lines(STAT)), processors, os.sysconf("SC_CLK_TCK"))
    if busy is None:
        return None
    spare = len(processors) - usable_processors()
    return busy - sum(os.times()[:4]) - spare * time.monotonic()


class Others:
    """What other programs did during several runs."""

    def __init__(self):
        self.cores: list[float] = []  # that they kept busy, by run; 0: no more than on any machine at rest

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """A run."""
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
                f"{disturbed} of {len(self.cores)} runs: measure again while nothing else runs")
