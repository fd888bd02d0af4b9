"""What is measured: tests (prompts and generations) on configurations (lists of devices with shares), and in which
order. Pure functions."""

import dataclasses
import json
import re

CPU_DEVICE = re.compile(r"(?:\d+:)?CPU(\d+)$")
MODES = ("tensor", "layer")


class ConfigurationError(Exception):
    """Flags that do not make sense; one line with the remedy. `code` is what the script is to exit with: 2 for what
    the command line alone shows, 1 for files and the environment."""

    def __init__(self, message: str, code: int = 2):
        super().__init__(message)
        self.code = code


@dataclasses.dataclass(frozen=True)
class Test:
    """As `shoal bench -p prompt` or `-n generate`, with `-d depth`."""

    prompt: int
    generate: int
    depth: int = 0

    @property
    def name(self) -> str:
        name = f"pp{self.prompt}" if self.prompt else f"tg{self.generate}"
        return f"{name} @ d{self.depth}" if self.depth else name

    @property
    def context(self) -> int:
        return self.depth + self.prompt + self.generate

    @property
    def tokens(self) -> int:
        return self.prompt or self.generate


@dataclasses.dataclass(frozen=True)
class Configuration:
    """A way to use devices. groups: those that act as one, `((CPU0, CPU1),)`; so is each stage of a layer split. Those of
    several processes have the names that all of these use: `((CPU0, 1:CPU0),)`."""

    groups: tuple[tuple[str, ...], ...]
    mode: str = "tensor"
    shares: str = ""
    machine: bool = False  # the whole machine as one CPU device: what the split itself costs
    profile: str = ""  # what is in the file that `shares` names
    reference: bool = False  # one device alone that was not asked for, but that the ideal of others is made of
    processes: int = 0  # that a launcher starts; 0: the program is started by itself

    @property
    def devices(self) -> list[str]:
        return [device for group in self.groups for device in group]

    @property
    def count(self) -> int:
        return len(self.devices)

    def has_collectives(self, device: str) -> bool:
        """Stages of one device have none."""
        return any(device in group and len(group) > 1 for group in self.groups)

    @property
    def names(self) -> str:
        """As --devices takes it: of several processes those of each."""
        own = [[device for device in group if ":" not in device] for group in self.groups]
        return ",".join(("," if self.mode == "tensor" else "+").join(group) for group in own if group)

    @property
    def series(self) -> str:
        """What a curve over the numbers of devices has in common."""
        words = [self.mode if self.mode != "tensor" else "", self.shares]
        if self.processes and len(re.split("[,+]", self.names)) > 1:
            words.append(f"{self.names} each")
        return " ".join(word for word in words if word)

    @property
    def name(self) -> str:
        if self.machine:
            return "all cores as one device"
        if not self.processes or self.count == 1:  # one alone is found by its name
            return f"{self.names} {self.series}".strip()
        words = [self.names, f"in {self.processes} process{'es' if self.processes > 1 else ''}"]
        words += [self.mode] if self.mode != "tensor" else []
        return " ".join(words + ([self.shares] if self.shares else []))

    def in_processes(self, count: int) -> "Configuration":
        """The same devices in each of so many."""

        def named(group: tuple[str, ...], process: int) -> tuple[str, ...]:
            return tuple(f"{process}:{name}" if process else name for name in group)

        groups = tuple(named(group, process) for process in range(max(count, 1)) for group in self.groups)
        if self.mode == "tensor":
            groups = (tuple(device for group in groups for device in group),)
        return dataclasses.replace(self, groups=groups, processes=count)

    def flags(self) -> list[str]:
        flags = ["--devices", self.names]
        flags += ["--split-mode", self.mode] if self.mode != "tensor" else []
        return flags + (["--tensor-split", self.shares] if self.shares else [])


def tests_of(prompts: list[int], generations: list[int], depths: list[int]) -> list[Test]:
    """In the order of `shoal bench`."""
    found = [
        test
        for depth in depths
        for test in [Test(count, 0, depth) for count in prompts if count]
        + [Test(0, n, depth) for n in generations if n]
    ]
    if not found:
        raise ConfigurationError("nothing to measure: -p and -n are 0")
    return list(dict.fromkeys(found))


def groups_of(text: str, mode: str) -> tuple[tuple[str, ...], ...]:
    """CPU0+CPU1,CPU2 are two groups of a layer split; in a tensor split everything is one group."""
    groups = [tuple(name.strip() for name in part.split("+")) for part in text.split(",")]
    names = [name for group in groups for name in group]
    if not all(names):
        raise ConfigurationError(f"--devices {text!r}: an empty name; lists look like CPU0,CPU1")
    if len(set(names)) != len(names):
        raise ConfigurationError(f"--devices {text!r}: a device is there twice")
    if mode == "tensor":
        if len(groups) != len(names):
            raise ConfigurationError(f"--devices {text!r}: groups with + are for --split-mode layer")
        return (tuple(names),)
    return tuple(groups)


@dataclasses.dataclass(frozen=True)
class Shares:
    """One of --tensor-split, as `shoal bench` takes it: numbers, `auto`, a profile (`@FILE`), or nothing for even."""

    text: str
    names: str = ""  # the devices of a profile, as --devices takes them
    mode: str = ""  # of a profile
    content: str = ""  # of a profile, which another one of the same name may replace

    @staticmethod
    def of(text: str) -> "Shares":
        return Shares(text, *profile_of(text[1:])) if text.startswith("@") else Shares(text)

    @property
    def count(self) -> int:
        return len(re.split("[,:/]", self.text))

    def fit(self, configuration: Configuration) -> bool:
        if self.names:
            return configuration.processes < 2 and (self.names, self.mode) == (configuration.names, configuration.mode)
        entries = len(configuration.groups) if configuration.mode == "layer" else configuration.count
        return self.text in ("", "auto") or self.count == entries

    def why_unused(self) -> str:
        if self.names:
            return f"no list of devices is {self.names} in split mode {self.mode}, which the profile is for"
        wanted = "two or more" if self.text == "auto" else self.count
        return f"no list of devices has {wanted} devices"


def profile_of(path: str) -> tuple[str, str, str]:
    """Devices, split mode and the text of a profile of scripts/tune_split.py; the program checks the rest of it."""
    try:
        with open(path, encoding="utf-8") as file:
            content = file.read(1 << 20)
        profile = json.loads(content)
        devices, mode = profile["devices"], profile.get("split_mode", "tensor")
        if not (isinstance(devices, list) and devices and all(isinstance(name, str) for name in devices)):
            raise ValueError
    except OSError as error:
        raise ConfigurationError(f"--tensor-split @{path}: {error.strerror}; @ names a profile", 1) from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise ConfigurationError(
            f'--tensor-split @{path}: this is no profile such as {{"version": 1, "devices": ["CPU0", "CPU1"], '
            '"tensor_split": [3, 1]}',
            1,
        ) from None
    return ",".join(devices), str(mode), content


def configurations_of(
    lists: list[str], modes: list[str], shares: list[str], processes: tuple[int, ...] = (0,)
) -> list[Configuration]:
    """Of each list of devices, each mode, each number of processes and all shares that are for these devices; even, where
    none are."""
    known = [Shares.of(text) for text in shares]
    found = []
    for text in lists:
        for mode in modes:
            if mode not in MODES:
                raise ConfigurationError(f"--split-mode {mode}: known are {', '.join(MODES)}")
            if mode == "tensor" and "+" in text and "layer" in modes:
                continue
            for count in processes:
                even = Configuration(groups_of(text, mode), mode).in_processes(count)
                if even.count == 1:
                    found.append(dataclasses.replace(even, mode="tensor"))
                    continue
                fitting = [one for one in known if one.fit(even)] or [Shares("")]
                found += [dataclasses.replace(even, shares=one.text, profile=one.content) for one in fitting]
    for one in known:
        if one.text and all(one.text != configuration.shares for configuration in found):
            raise ConfigurationError(f"--tensor-split {one.text}: {one.why_unused()}")
    return list(dict.fromkeys(found))


def lists_of_counts(counts: list[int], family: str) -> list[str]:
    """1,2 of CPU: CPU0 and CPU0,CPU1."""
    return [",".join(f"{family}{index}" for index in range(count)) for count in counts]


def cpu_devices(configurations: list[Configuration]) -> int:
    """How many devices of the CPU there must be for these names; 0: none is used."""
    found = [CPU_DEVICE.match(device) for one in configurations for device in one.devices]
    return max((int(match[1]) + 1 for match in found if match), default=0)


def baseline_of(configurations: list[Configuration]) -> Configuration:
    """The first with one device, otherwise the first with the fewest."""
    usual = [one for one in configurations if not one.machine and not one.reference]
    return min(usual, key=lambda one: one.count)


def order_of_round(configurations: list[Configuration], number: int) -> list[Configuration]:
    """Each round begins with the next one."""
    first = number % len(configurations)
    return configurations[first:] + configurations[:first]
