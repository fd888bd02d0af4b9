"""The compared configurations: lists of devices with split mode, shares and processes. The only files that this module
reads are profiles."""

import dataclasses
import json
import re

CPU_DEVICE = re.compile(r"CPU(\d+)$")
MODES = ("tensor", "layer")
PAGE = 32  # rows of a page of the KV cache


class ConfigurationError(Exception):
    """The flags are invalid. str() is one line with the remedy. `code`: exit code of the script; 2 for a wrong command
    line, 1 for a wrong file."""

    def __init__(self, message: str, code: int = 2):
        super().__init__(message)
        self.code = code


@dataclasses.dataclass(frozen=True)
class Test:
    """A test of `shoal bench`: `-p prompt` or `-n generate`, or both with `-np parallel`, each with `-d depth`."""

    prompt: int
    generate: int
    depth: int = 0
    parallel: int = 0  # number of requests that run at the same time; 0: a test without requests

    @property
    def name(self) -> str:
        name = f"pp{self.prompt}" if self.prompt else f"tg{self.generate}"
        if self.parallel:
            name = f"np{self.parallel} pp{self.prompt} tg{self.generate}"
        return f"{name} @ d{self.depth}" if self.depth else name

    @property
    def context(self) -> int:
        length = self.depth + self.prompt + self.generate
        return self.parallel * -(-length // PAGE) * PAGE if self.parallel else length


@dataclasses.dataclass(frozen=True)
class Configuration:
    """Devices and settings of a run. `devices` is a value of --devices: CPU0,CPU1 (layer split: CPU0+CPU1,CPU2)."""

    devices: str
    mode: str = "tensor"
    shares: str = ""
    processes: int = 0  # number of processes that a launcher starts; 0: one process without a launcher
    is_whole_machine: bool = False  # whether the device is the CPU with all cores
    profile: str = ""  # content of the file in `shares`; a changed file gives other results

    @property
    def members(self) -> list[str]:
        """Devices of all processes. All processes use the device names of process 0."""
        return re.split("[,+]", self.devices) * max(self.processes, 1)

    @property
    def count(self) -> int:
        return len(self.members)

    @property
    def name(self) -> str:
        if self.is_whole_machine:
            return "all cores as one device"
        words = [self.devices, f"in {self.processes} processes" if self.processes > 1 else ""]
        if self.count > 1:
            words += [self.mode if self.mode != "tensor" else "", self.shares]
        return " ".join(word for word in words if word)

    def flags(self) -> list[str]:
        flags = ["--devices", self.devices]
        if self.count > 1:
            flags += ["--split-mode", self.mode] if self.mode != "tensor" else []
            numbers = json.loads(self.profile)["tensor_split"] if self.profile else []
            shares = ",".join(str(number) for number in numbers) or self.shares
            flags += ["--tensor-split", shares] if shares else []
        return flags


def tests_of(prompts: list[int], generations: list[int], depths: list[int], parallels: list[int] = ()) -> list[Test]:
    """Returns all tests in the order of `shoal bench`."""
    if parallels and not (all(prompts) and all(generations)):
        raise ConfigurationError("with --parallel, each request has a prompt and an answer; use -p and -n above 0")
    found = [Test(prompt, generate, depth, parallel) for depth in depths for prompt in prompts
             for generate in generations for parallel in parallels]
    for depth in [] if parallels else depths:
        found += [Test(count, 0, depth) for count in prompts if count]
        found += [Test(0, count, depth) for count in generations if count]
    if not found:
        raise ConfigurationError("nothing to measure: -p and -n are 0")
    return list(dict.fromkeys(found))


@dataclasses.dataclass(frozen=True)
class Shares:
    """A value of --tensor-split: numbers, `auto`, or a profile of scripts/tune_split.py (`@FILE`)."""

    text: str
    devices: str = ""  # the profile's devices
    mode: str = ""
    content: str = ""

    @staticmethod
    def of(text: str) -> "Shares":
        if not text.startswith("@"):
            return Shares(text)
        try:
            with open(text[1:], encoding="utf-8") as file:
                content = file.read(1 << 20)
            profile = json.loads(content)
            return Shares(text, ",".join(profile["devices"]), profile.get("split_mode", "tensor"), content)
        except OSError as error:
            raise ConfigurationError(f"--tensor-split {text}: {error.strerror}; @ is followed by the name of a profile", 1) from None
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            raise ConfigurationError(f"--tensor-split {text}: this is not a profile of tune_split.py", 1) from None

    def fit(self, one: Configuration) -> bool:
        if self.devices:
            return one.processes < 2 and (self.devices, self.mode) == (one.devices, one.mode)
        entries = one.count if one.mode == "tensor" else len(one.devices.split(",")) * max(one.processes, 1)
        return self.text == "auto" or len(re.split("[,:/]", self.text)) == entries


def configurations_of(
    lists: list[str], modes: list[str], shares: list[str], processes: list[int]
) -> list[Configuration]:
    """Combines each list of devices with each mode, each number of processes, and all shares that fit the list. If
    no shares fit, the split is even. A list of one device has no mode and no shares."""
    known = [Shares.of(text) for text in shares]
    found = []
    for mode in modes:
        if mode not in MODES:
            raise ConfigurationError(f"--split-mode {mode}: known modes are {', '.join(MODES)}")
    for devices in lists:
        for mode in modes:
            if mode == "tensor" and "+" in devices:
                if "layer" not in modes:
                    raise ConfigurationError(f"--devices {devices!r}: groups with + need --split-mode layer")
                continue
            for count in processes:
                even = Configuration(devices, mode, processes=count)
                if not all(even.members) or len(set(even.members)) * max(count, 1) != even.count:
                    raise ConfigurationError(f"--devices {devices!r}: a name is empty or listed twice")
                if even.count == 1:
                    found.append(dataclasses.replace(even, mode="tensor"))
                    continue
                fitting = [one for one in known if one.fit(even)] or [Shares("")]
                found += [dataclasses.replace(even, shares=one.text, profile=one.content) for one in fitting]
    for one in known:
        if all(one.text != configuration.shares for configuration in found):
            raise ConfigurationError(f"--tensor-split {one.text}: no list of devices fits these shares")
    return list(dict.fromkeys(found))


def cpu_devices(configurations: list[Configuration]) -> int:
    """Number of CPU devices that the device names need; 0: no CPU devices."""
    found = [CPU_DEVICE.match(device) for one in configurations for device in one.members]
    return max((int(match[1]) + 1 for match in found if match), default=0)


def baseline_of(configurations: list[Configuration]) -> Configuration:
    """Returns the first configuration with the smallest number of devices."""
    return min((one for one in configurations if not one.is_whole_machine), key=lambda one: one.count)


def order_of_round(configurations: list[Configuration], number: int) -> list[Configuration]:
    """Returns the configurations in the order of round `number`. Each round begins with the next configuration."""
    first = number % len(configurations)
    return configurations[first:] + configurations[:first]
