"""What is measured: tests (prompts and generations) on configurations (lists of devices with shares), and in which
order. Pure functions."""

import dataclasses
import re

CPU_DEVICE = re.compile(r"CPU(\d+)$")
MODES = ("tensor", "layer")


class ConfigurationError(Exception):
    """Flags that do not make sense; one line with the remedy."""


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
    """A way to use devices. groups: those that act as one, `((CPU0, CPU1),)`; the stages of a layer split each are one."""

    groups: tuple[tuple[str, ...], ...]
    mode: str = "tensor"
    shares: str = ""
    machine: bool = False  # the whole machine as one CPU device: what the split itself costs

    @property
    def devices(self) -> list[str]:
        return [device for group in self.groups for device in group]

    @property
    def count(self) -> int:
        return len(self.devices)

    @property
    def names(self) -> str:
        """As --devices takes it."""
        if self.mode == "tensor":
            return ",".join(self.devices)
        return ",".join("+".join(group) for group in self.groups)

    @property
    def series(self) -> str:
        """What a curve over the numbers of devices has in common."""
        words = [self.mode if self.mode != "tensor" else "", self.shares]
        return " ".join(word for word in words if word)

    @property
    def name(self) -> str:
        if self.machine:
            return "all cores as one device"
        return f"{self.names} {self.series}".strip()

    def flags(self) -> list[str]:
        flags = ["--devices", self.names]
        flags += ["--split-mode", self.mode] if self.mode != "tensor" else []
        return flags + (["--tensor-split", self.shares] if self.shares else [])


def tests_of(prompts: list[int], generations: list[int], depths: list[int]) -> list[Test]:
    """In the order of `shoal bench`."""
    found = [
        test
        for depth in depths
        for test in [Test(count, 0, depth) for count in prompts if count] + [Test(0, n, depth) for n in generations if n]
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


def shares_for(lists: list[str], count: int) -> list[str]:
    """Those that have as many numbers; even, where none has."""
    fitting = [shares for shares in lists if not shares or len(shares.split(",")) == count]
    return fitting or [""]


def configurations_of(lists: list[str], modes: list[str], shares: list[str]) -> list[Configuration]:
    """Of each list of devices, each mode and each list of shares that is for as many devices."""
    found = []
    for text in lists:
        for mode in modes:
            if mode not in MODES:
                raise ConfigurationError(f"--split-mode {mode}: known are {', '.join(MODES)}")
            if mode == "tensor" and "+" in text and "layer" in modes:
                continue
            groups = groups_of(text, mode)
            if sum(len(group) for group in groups) == 1:
                found.append(Configuration(groups))
                continue
            units = len(groups) if mode == "layer" else len(groups[0])
            found += [Configuration(groups, mode, one) for one in shares_for(shares, units)]
    unused = [one for one in shares if one and all(one != configuration.shares for configuration in found)]
    if unused:
        raise ConfigurationError(f"--tensor-split {unused[0]}: no list of devices has {len(unused[0].split(','))} devices")
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
    usual = [one for one in configurations if not one.machine]
    return min(usual, key=lambda one: one.count)


def order_of_round(configurations: list[Configuration], number: int) -> list[Configuration]:
    """Each round begins with the next one."""
    first = number % len(configurations)
    return configurations[first:] + configurations[:first]
