"""Network namespaces that act as hosts on one machine. Needs root. Each host has a name and an address. If there are
enough cores, each host has its own cores. A cable connects each host to a switch, which is another namespace.

    with Hosts(2, rate=1e9, delay=50) as hosts:              # shoal0, shoal1: 10.77.0.1, 10.77.0.2
        subprocess.run(hosts.mpirun(["shoal", "run", ...]), env=hosts.environment())
        hosts.cut(1)                                             # unplugs shoal1

mpirun runs on the first host and starts processes on the other hosts through scripts/hosts/enter. tbf limits the rate
at both ends of every cable. At the switch, netem adds the delay to each frame between two hosts. If the kernel has no
netem, scripts/hosts/relay.cpp is the switch and adds the delay. relay.cpp is built at its first use.
"""
import contextlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence

HERE = pathlib.Path(__file__).resolve().parent
RELAY = HERE.parents[1] / "build/hosts/relay"
SUBNET, PORT = "10.77.0", "eth0"
MOST = 32
# Parameters of tbf. FRAMES: size of two frames in bytes, the smallest burst. LATENESS: maximum delay of a timer in
# seconds. A burst may contain the bytes that a cable transfers in this time. With larger bursts, short messages would
# exceed the rate. QUEUE: maximum latency of the queue. TCP would fill a longer queue.
FRAMES, LATENESS, QUEUE = 3200, 40e-6, "20ms"


class NetworkError(Exception):
    """The hosts cannot be made. str() is one line with the remedy."""


def _tried(*command: object) -> subprocess.CompletedProcess:
    return subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False)


def _do(*command: object) -> str:
    result = _tried(*command)
    if result.returncode != 0:
        why = (result.stderr.strip() or "no message").splitlines()[-1]
        raise NetworkError(f"{' '.join(map(str, command))} failed: {why}")
    return result.stdout


def microseconds(text: str) -> float:
    """Parses a time: "50us" -> 50."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s)", text)
    if not found:
        raise ValueError(f"{text!r}: expected a time such as 50us or 1ms")
    return float(found[1]) * {"us": 1, "ms": 1e3, "s": 1e6}[found[2]]


def bits(text: str) -> float:
    """Parses a rate: "1gbit" -> 1e9 bits per second."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg])bit", text)
    if not found:
        raise ValueError(f"{text!r}: expected a rate such as 1gbit or 100mbit")
    return float(found[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[found[2]]


def require_root() -> None:
    if os.geteuid() != 0:
        raise NetworkError("network namespaces need root; use sudo")
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2"), ("unshare", "util-linux"), ("taskset", "util-linux")):
        if shutil.which(tool) is None:
            raise NetworkError(f"there is no {tool} here; install {package}")


def _namespaces(name: str) -> list[str]:
    """Names of the network namespaces of the hosts and of their switch."""
    wanted = re.compile(re.escape(name) + r"(\d+|-switch)")
    words = [line.split()[0] for line in _tried("ip", "netns", "list").stdout.splitlines() if line.strip()]
    return [word for word in words if wanted.fullmatch(word)]


def take_down(name: str = "shoal") -> int:
    """Kills the programs on the hosts with this name, then removes the hosts. Returns the number of removed hosts."""
    require_root()
    spaces = _namespaces(name)
    for space in spaces:
        for pid in _tried("ip", "netns", "pids", space).stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    for space in spaces:
        _tried("ip", "netns", "del", space)
    hosts = [space for space in spaces if not space.endswith("-switch")]
    for host in hosts:
        shutil.rmtree(f"/tmp/ompi.{host}.{os.getuid()}", ignore_errors=True)
        for segment in pathlib.Path("/dev/shm").glob(f"vader_segment.{host}.*"):
            segment.unlink(missing_ok=True)
    return len(hosts)


def built_relay() -> pathlib.Path:
    source = HERE / "relay.cpp"
    if RELAY.is_file() and RELAY.stat().st_mtime >= source.stat().st_mtime:
        return RELAY
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise NetworkError(f"there is no compiler {compiler} for {source.name}; scripts/install_deps installs g++")
    RELAY.parent.mkdir(parents=True, exist_ok=True)
    made = RELAY.with_name(f"relay.{os.getpid()}")
    _do(compiler, "-std=c++20", "-O2", source, "-o", made)
    made.rename(RELAY)
    return RELAY


class Hosts:
    """Makes hosts and removes them. `rate` is in bits/s and `delay` in microseconds. Host names are `name` followed by
    a number from 0 on. Hosts with other names may exist at the same time. Raises NetworkError."""

    def __init__(self, count: int, rate: float | None = None, delay: float = 0, name: str = "shoal"):
        if not 1 <= count <= MOST:
            raise NetworkError(f"{count} hosts: expected 1 to {MOST}")
        if not re.fullmatch(r"[a-z][a-z-]{0,9}", name):
            raise NetworkError(f"{name}: a host name has up to 10 lower-case letters or hyphens")
        require_root()
        if _namespaces(name):
            raise NetworkError(f"hosts named {name} already exist; remove them with scripts/hosts_down --name {name}")
        self.count, self.rate, self.delay, self.name = count, rate, delay, name
        self.switch = f"{name}-switch"
        self._relay: subprocess.Popen | None = None
        try:
            self._plug_together()
        except BaseException:
            self.down()
            raise

    def __enter__(self) -> "Hosts":
        return self

    def __exit__(self, *_unused: object) -> None:
        self.down()

    def down(self) -> None:
        take_down(self.name)
        if self._relay is not None:
            self._relay.communicate()

    @property
    def is_relayed(self) -> bool:
        """Whether relay.cpp is the switch and adds the delay."""
        return self._relay is not None

    def host(self, number: int) -> str:
        return f"{self.name}{number}"

    @staticmethod
    def address(number: int) -> str:
        return f"{SUBNET}.{number + 1}"

    def cores(self) -> list[str]:
        """Cores of each host in the format of taskset. Empty if there are fewer cores than hosts."""
        available = sorted(os.sched_getaffinity(0))
        share = len(available) / self.count
        if share < 1:
            return []
        return [",".join(str(core) for core in available[int(host * share):int((host + 1) * share)])
                for host in range(self.count)]

    def environment(self) -> dict[str, str]:
        """Environment of the commands that mpirun() and entered() return."""
        return {**os.environ, "HOSTS_UP_NAME": self.name, "HOSTS_UP_CORES": " ".join(self.cores())}

    def entered(self, number: int, command: Sequence[object]) -> list[str]:
        """Returns a command line that runs `command` on a host."""
        return [str(HERE / "enter"), self.address(number), shlex.join(map(str, command))]

    def mpirun(self, command: Sequence[object], per_host: int = 1, extra: Sequence[object] = ()) -> list[str]:
        """Returns a command line that runs `command` in `per_host` processes on each host. `extra`: flags of mpirun."""
        hosts = ",".join(f"{self.address(number)}:{per_host}" for number in range(self.count))
        flags = ["--allow-run-as-root", "--host", hosts, "-np", self.count * per_host, "--bind-to", "none",
                 "--mca", "plm_rsh_agent", HERE / "enter", "--mca", "plm_rsh_no_tree_spawn", 1,
                 "--mca", "btl_tcp_if_include", f"{SUBNET}.0/24", "--mca", "oob_tcp_if_include", f"{SUBNET}.0/24"]
        cores = self.cores()
        if not cores or per_host > len(cores[0].split(",")):  # several processes share a core
            flags += ["--mca", "mpi_yield_when_idle", 1]
        return self.entered(0, ["mpirun", *flags, *extra, *command])

    def cut(self, number: int) -> None:
        """Disconnects a host from the switch."""
        _do("ip", "-n", self.switch, "link", "set", self.host(number), "down")

    def mend(self, number: int) -> None:
        _do("ip", "-n", self.switch, "link", "set", self.host(number), "up")

    def _plug_together(self) -> None:
        _do("ip", "netns", "add", self.switch)
        for number in range(self.count):
            self._add_host(number)
        netem = self.delay > 0 and self._has_netem()
        for number in range(self.count):
            self._shape(self.host(number), PORT, 0)
            self._shape(self.switch, self.host(number), self.delay if netem else 0)
        if self.delay > 0 and not netem:
            self._start_relay()
        else:
            _do("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
            _do("ip", "-n", self.switch, "link", "set", "bridge", "up")
            for number in range(self.count):
                _do("ip", "-n", self.switch, "link", "set", self.host(number), "master", "bridge")

    def _add_host(self, number: int) -> None:
        host = self.host(number)
        _do("ip", "netns", "add", host)
        for space in (host, self.switch):
            _tried("ip", "netns", "exec", space, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1",
                   "net.ipv6.conf.default.disable_ipv6=1")
        _do("ip", "-n", host, "link", "add", PORT, "type", "veth", "peer", "name", host, "netns", self.switch)
        _do("ip", "-n", host, "address", "add", f"{self.address(number)}/24", "dev", PORT)
        for space, device in ((host, "lo"), (host, PORT), (self.switch, host)):
            _do("ip", "-n", space, "link", "set", device, "up")

    def _has_netem(self) -> bool:
        probe = ("tc", "-n", self.switch, "qdisc")
        if _tried(*probe, "add", "dev", self.host(0), "root", "netem", "delay", "1us").returncode != 0:
            return False
        _do(*probe, "del", "dev", self.host(0), "root")
        return True

    def _shape(self, space: str, device: str, delay: float) -> None:
        """Limits the output rate of a network device, and delays its output by `delay` microseconds."""
        parent = ["root"]
        if delay:
            _do("tc", "-n", space, "qdisc", "add", "dev", device, "root", "handle", "1:", "netem", "delay", f"{delay:g}us",
                "limit", 100000)
            parent = ["parent", "1:"]
        if self.rate:
            _do("tc", "-n", space, "qdisc", "add", "dev", device, *parent, "tbf", "rate", f"{self.rate:.0f}bit",
                "burst", max(FRAMES, round(self.rate / 8 * LATENESS)), "latency", QUEUE)

    def _start_relay(self) -> None:
        command = ["ip", "netns", "exec", self.switch, built_relay(), f"{self.delay:g}",
                   *(self.host(number) for number in range(self.count))]
        self._relay = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, text=True, start_new_session=True)
        time.sleep(0.1)
        if self._relay.poll() is not None:
            raise NetworkError(f"the relay did not start: {self._relay.stderr.read().strip()}")
