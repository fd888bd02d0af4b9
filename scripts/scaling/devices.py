"""The devices of a study, as `shoal devices` describes them: their threads, which of them are alike, and which must be
measured alone so that the ideal of several is known."""

import dataclasses
import re

from measuring.program import ProgramError, Shoal
from scaling.configurations import Configuration

THREADS, CORES = re.compile(r"(\d+) threads?\b"), re.compile(r"(\d+) cores?\b")
SLOWED = re.compile(r"slowed ([\d.e+]+)x")
PART = re.compile(r", part \d+ of \d+")  # of a GPU that is divided: all parts are alike


@dataclasses.dataclass(frozen=True)
class Device:
    name: str
    kind: str  # CPU, GPU, ...
    description: str
    threads: int = 0  # of a CPU device that computes; 0: unknown
    slowdown: float = 1.0

    @staticmethod
    def of(found: dict, threads: int | None = None) -> "Device":
        """found: an entry of `shoal devices`; threads: of -t, which holds for every CPU device."""
        text, kind = str(found.get("description", "")), str(found.get("type", ""))
        if kind != "CPU":
            return Device(found["name"], kind, text)
        own = THREADS.search(text) or CORES.search(text)  # a thread for each core, where nothing else is said
        slowed = SLOWED.search(text)
        count = threads or (int(own[1]) if own else 0)
        return Device(found["name"], kind, text, count, float(slowed[1]) if slowed else 1.0)

    @property
    def likeness(self) -> tuple[str, str, int]:
        """The same for devices that do the same work in the same time."""
        return self.kind, PART.sub("", self.description), self.threads


@dataclasses.dataclass(frozen=True)
class Devices:
    """All that there are."""

    found: dict[str, Device] = dataclasses.field(default_factory=dict)
    cores: int = 0  # of the machine, that CPU devices share

    @staticmethod
    def read(shoal: Shoal, environment: dict[str, str], threads: int | None, processes: int = 0) -> "Devices":
        """Those of each of several processes are taken to be alike; whether these share cores is not known."""
        told = shoal.json(["devices", "--output", "json"], environment=environment)
        try:
            found = {one["name"]: Device.of(one, threads) for one in told["devices"]}
            features = [one.get("features", {}) for one in told.get("families", []) if one.get("name") == "CPU"]
            cores = str(features[0].get("cores", "")) if features else ""
        except (KeyError, TypeError, AttributeError, ValueError):
            raise ProgramError("shoal devices wrote JSON that lacks something; use a newer build") from None
        for process in range(1, processes):
            others = {f"{process}:{name}": device for name, device in found.items() if ":" not in name}
            found |= {name: dataclasses.replace(device, name=name) for name, device in others.items()}
        return Devices(found, int(cores) if cores.isdigit() and processes < 2 else 0)

    def alike(self, one: str, other: str) -> bool:
        known = one in self.found and other in self.found
        return one == other or (known and self.found[one].likeness == self.found[other].likeness)

    def stand_in(self, device: str, measured: list[str]) -> str | None:
        """Which of those that were measured alone tells what this device does alone: itself, or one that is alike."""
        return next((one for one in [device, *measured] if one in measured and self.alike(device, one)), None)

    def capacity(self, device: str, threads: int) -> float:
        """How many of the machine's cores a CPU device keeps busy; one that is slowed leaves its core meanwhile."""
        return min(threads, self.cores) / self.found[device].slowdown


def several(configurations: list[Configuration]) -> list[str]:
    """The devices that work together with others."""
    used = [one for configuration in configurations if configuration.count > 1 for one in configuration.devices]
    return list(dict.fromkeys(used))


def measured_alone(configurations: list[Configuration]) -> list[str]:
    return [one.devices[0] for one in configurations if one.count == 1 and not one.machine]


def to_measure_alone(configurations: list[Configuration], devices: Devices) -> list[Configuration]:
    """One of each kind of devices that work together, if they are of several kinds: only then the ideal is not simply
    their number. One that is unlike the only device measured alone is another kind, too."""
    together = [name for name in several(configurations) if name in devices.found]
    alone = measured_alone(configurations)
    if not together or all(devices.alike(together[0], name) for name in together + alone):
        return []
    found: list[str] = []
    for name in together:
        if devices.stand_in(name, alone + found) is None:
            found.append(name)
    processes = 1 if any(one.processes for one in configurations) else 0
    return [Configuration(((name,),), reference=True, processes=processes) for name in found]


def listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def ideal_lines(configurations: list[Configuration], devices: Devices) -> list[str]:
    """What the ideal is made of, for the report."""
    together, alone = several(configurations), measured_alone(configurations)
    if not together:
        return []
    if not alone:
        return ["*Ideal*: all devices are alike, so that it is the baseline's, by the number of devices."]
    groups: dict[str, list[str]] = {}
    for name in together:
        stand_in = devices.stand_in(name, alone)
        if stand_in is not None and stand_in != name:
            groups.setdefault(stand_in, []).append(name)
    own = [name for name in together if name in alone]
    unlike = any(not devices.alike(one, together[0]) for one in together)
    parts = [f"*Ideal*: {'the devices are not alike; ' if unlike else ''}{listed(own or alone)} "
             f"{'was' if len(own or alone) == 1 else 'were each'} measured alone"]
    for stand_in, names in groups.items():
        parts.append(f"{listed(names)}, which {'is' if len(names) == 1 else 'are'} like {stand_in}, "
                     f"count{'s' if len(names) == 1 else ''} as {stand_in}")
    unknown = [name for name in together if devices.stand_in(name, alone) is None]
    if unknown:
        parts.append(f"{listed(unknown)} {'is' if len(unknown) == 1 else 'are'} not there, so that nothing is known "
                     "of what would be ideal")
    return ["; ".join(parts) + "."]
