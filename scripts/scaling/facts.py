"""What a report says of how it was made: the command and its environment, what one device is, versions, the machine."""

import os
import platform
import shlex
import sys
from importlib import metadata

from scaling import configurations, devices, runs, topology
from scaling.study import Study

SCRIPT = "scripts/bench_scaling.py"


def command_line(arguments: list[str]) -> str:
    """With the variables that shape what it does, so that it does the same elsewhere."""
    given = runs.settings_of_shoal({})
    if "--shoal" not in arguments and os.environ.get("SHOAL_PROGRAM"):
        given["SHOAL_PROGRAM"] = os.environ["SHOAL_PROGRAM"]
    before = [f"{name}={shlex.quote(value)}" for name, value in given.items()]
    return " ".join([*before, shlex.join([SCRIPT, *arguments])])


def why_so_many(setup: runs.Setup, environment: dict[str, str]) -> str:
    """Threads of a CPU device: who says how many."""
    if setup.threads:
        return "`-t`"
    if any(word in ("-t", "--threads") or word.startswith("--threads=") for word in setup.extra):
        return "`--bench-arguments`"
    if threads := environment.get("SHOAL_CPU_THREADS"):
        return f"`SHOAL_CPU_THREADS={threads}`"
    return "one for each core that it has"


def devices_line(setup: runs.Setup, study: Study, environment: dict[str, str]) -> list[str]:
    """With how many threads the CPU's devices compute, and how they are slowed."""
    found, base = study.findings, configurations.baseline_of(setup.configurations)
    threads = {name: found.threads(name) for name in base.devices}
    if not all(threads.values()):
        return []
    count, cores = environment["SHOAL_CPU_DEVICES"], found.devices.cores
    whose = f"The CPU's {topology.counted(cores, 'core')}" if cores else "The cores of each process"
    count_text = topology.counted(sum(threads.values()), "thread")
    what = f"{base.name} computes with {count_text} ({why_so_many(setup, environment)})"
    slowed = [found.devices.found[name].slowdown for name in base.devices if name in found.devices.found]
    if any(one > 1 for one in slowed):
        what += f", slowed {' and '.join(f'{one:g}' for one in slowed)} times,"
    return [
        f"{whose} {'is' if cores == 1 else 'are'} divided among "
        f"{topology.counted(int(count), 'device')} in all runs (`SHOAL_CPU_DEVICES={count}`), so that {what} whether "
        "or not the others work."
    ]


def others_line(setup: runs.Setup, study: Study) -> list[str]:
    """The CPU devices beside the baseline that are unlike it in threads or speed."""
    found, base = study.findings, configurations.baseline_of(setup.configurations)
    used = {name for one in setup.configurations if not one.machine for name in one.devices}
    told = []
    for name, device in found.devices.found.items():
        if name not in used or name in base.devices or not found.threads(name):
            continue
        words = topology.counted(found.threads(name), "thread")
        words += f" and is slowed {device.slowdown:g} times" if device.slowdown > 1 else ""
        if any(not found.devices.alike(name, one) for one in base.devices):
            told.append(f"{name} has {words}")
    return [f"{'; '.join(told)}."] if told else []


def crowded_line(setup: runs.Setup, study: Study) -> list[str]:
    """That there are more threads than cores."""
    found = study.findings
    used = {name for one in setup.configurations if not one.machine for name in one.devices}
    together = sum(found.threads(name) for name in used)
    if not found.devices.cores or together <= found.devices.cores:
        return []
    return [
        f"**All devices together have {together} threads for {topology.counted(found.devices.cores, 'core')}**: some "
        "share a core and take turns, and beyond the limit of the machine nothing can be gained."
    ]


def baseline_lines(setup: runs.Setup, study: Study) -> list[str]:
    """What "one device" means here."""
    base = configurations.baseline_of(setup.configurations)
    lines = [f"Everything is compared to **{base.name}**."]
    environment = runs.settings_of_shoal(setup.environment)
    if environment.get("SHOAL_CPU_DEVICES", "").isdigit() and setup.environment:
        lines += devices_line(setup, study, environment) + others_line(setup, study) + crowded_line(setup, study)
    lines += devices.ideal_lines(setup.configurations, study.findings.devices)
    if any(one.machine for one in setup.configurations):
        lines.append(
            "*All cores as one device* is the CPU undivided, `SHOAL_CPU_DEVICES=1`: what dividing itself costs."
        )
    return lines


def notes_of(setup: runs.Setup, study: Study, versions: dict[str, str]) -> list[str]:
    about = study.findings.about
    when = f", {about['test_time'][:10]}" if about.get("test_time") else ""
    commit = f", commit {about['build_commit']}" if about.get("build_commit") else ""
    environment = runs.settings_of_shoal(setup.environment)
    variables = ", ".join(f"`{name}={shlex.quote(value)}`" for name, value in environment.items())
    return [
        *([f"Processes are started by `{shlex.join(setup.launcher)} -n N`."] if setup.launcher else []),
        f"{setup.version}{commit}{when}; Python {versions['python']}, matplotlib {versions['matplotlib']}.",
        f"Environment: {variables or 'no variable that changes something'}.",
        f"{setup.rounds} rounds; a round runs every configuration once, each in a process of its own, and each round "
        f"begins with the next one. In a process a test runs once without the clock, then {setup.inside} times; the "
        "median counts.",
    ]


def facts_of(setup: runs.Setup, study: Study, able: runs.Abilities) -> dict:
    """For report.write."""
    host = topology.read()
    versions = {
        "shoal": setup.version,
        "python": platform.python_version(),
        "matplotlib": metadata.version("matplotlib"),
    }
    missing = len(study.missing)
    return {
        "baseline": baseline_lines(setup, study),
        "unfinished": f"{missing} of {len(study.jobs)} runs are missing; the same command goes on." if missing else "",
        "remarks": able.remarks(),
        "host_lines": topology.lines(host),
        "command": [command_line(sys.argv[1:])],
        "notes": notes_of(setup, study, versions),
        "document": {
            "command": [SCRIPT, *sys.argv[1:]],
            "baseline": configurations.baseline_of(setup.configurations).name,
            "rounds": setup.rounds,
            "environment": runs.settings_of_shoal(setup.environment),
            "threads": {
                name: count for name in study.findings.devices.found if (count := study.findings.threads(name))
            },
            "unfinished": missing,
            "remarks": able.remarks() + study.findings.remarks,
            "failures": [
                {"model": model, "configuration": name, "error": error}
                for (model, name), error in study.findings.failures.items()
            ],
            "versions": versions,
            "host": vars(host),
            "machine": study.findings.machine,
        },
    }
