"""Where the devices' time goes, from a trace of `shoal bench --trace` (Chrome's JSON: a row for each device). Pure
functions.

A collective ends when all ranks have come. What a rank spends in it before the last one has come is waiting, the rest
communication. Waiting elsewhere, for another stage of a pipeline for example, is a part of its own:

    CPU0  |== compute 40 us ==|=== all_reduce 25 us ===|     waiting 20, communication 5
    CPU1  |====== compute 60 us =======|= all_reduce 5 =|    waiting 0, communication 5
"""

import dataclasses
import json
import pathlib
import re

KINDS = {"compute", "collective", "wait", "copy", "host"}
RUN = re.compile(r" run \d+$")  # of the row "bench": what the clock measures, without the warm-up


class TraceError(Exception):
    """The file is no trace, or what is in it does not fit together; one line."""


@dataclasses.dataclass(frozen=True)
class Span:
    row: str
    kind: str
    name: str
    begin: float  # us
    end: float

    @property
    def length(self) -> float:
        return self.end - self.begin


@dataclasses.dataclass
class DeviceTime:
    """What a device does in the time of the measured runs, in parts of that time."""

    device: str
    compute: float = 0.0
    communication: float = 0.0
    waiting: float = 0.0  # in collectives, for others
    copies: float = 0.0
    blocked: float = 0.0  # waiting that is in no collective

    @property
    def idle(self) -> float:
        """Neither of them: the host prepares a run or takes its result, or another stage of a pipeline works."""
        return max(0.0, 1.0 - self.compute - self.communication - self.waiting - self.copies - self.blocked)

    @property
    def collectives(self) -> float:
        """All of the time in them, waiting included."""
        return self.communication + self.waiting


def parse(text: str) -> list[Span]:
    """In order of begin."""
    try:
        document = json.loads(text)
        events = document["traceEvents"] if isinstance(document, dict) else document
        names = {
            (event.get("pid"), event.get("tid")): event["args"]["name"]
            for event in events
            if event.get("ph") == "M" and event.get("name") == "thread_name"
        }
        spans = [
            Span(
                names.get((event.get("pid"), event.get("tid")), str(event.get("tid"))),
                event["cat"],
                event.get("name", ""),
                float(event["ts"]),
                float(event["ts"]) + float(event["dur"]),
            )
            for event in events
            if event.get("ph") == "X" and event.get("cat") in KINDS
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TraceError(f"not a trace as `shoal bench --trace` writes it ({error!r})") from error
    return sorted(spans, key=lambda span: (span.begin, span.end))


def waiting_in_collectives(rows: dict[str, list[Span]]) -> dict[str, list[float]]:
    """Of each collective of each row: how long the row waits for the last one of the group. All rows take part in
    the same collectives in the same order."""
    counts = {row: len(spans) for row, spans in rows.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{row} has {count}" for row, count in sorted(counts.items()))
        raise TraceError(f"devices that act as one have different numbers of collectives: {told}")
    waits: dict[str, list[float]] = {row: [] for row in rows}
    for together in zip(*rows.values()):
        last = max(span.begin for span in together)
        for row, span in zip(rows, together):
            waits[row].append(min(max(0.0, last - span.begin), span.length))
    return waits


def windows_of(spans: list[Span]) -> list[tuple[float, float]]:
    """When runs were measured; from the first to the last span where the trace does not say."""
    runs = [(span.begin, span.end) for span in spans if span.kind == "host" and RUN.search(span.name)]
    work = [span for span in spans if span.kind != "host"]
    return runs or [(min(span.begin for span in work), max(span.end for span in work))]


def breakdown(spans: list[Span], groups: list[list[str]]) -> list[DeviceTime]:
    """groups: devices that act as one, in the order in which they are to be listed."""
    devices = [device for group in groups for device in group]
    missing = [device for device in devices if not any(span.row == device for span in spans)]
    if missing:
        raise TraceError(f"the trace has no row of {', '.join(missing)}")
    windows = windows_of([span for span in spans if span.kind == "host" or span.row in devices])
    total = sum(end - begin for begin, end in windows)
    if total <= 0:
        raise TraceError("the spans of the trace take no time")
    spans = [span for span in spans if any(begin <= span.begin < end for begin, end in windows)]
    found = {device: DeviceTime(device) for device in devices}
    fields = {"compute": "compute", "wait": "blocked", "copy": "copies"}
    for span in spans:
        if span.row in found and span.kind in fields:
            name = fields[span.kind]
            setattr(found[span.row], name, getattr(found[span.row], name) + span.length / total)
    for group in groups:
        rows = {row: [span for span in spans if span.row == row and span.kind == "collective"] for row in group}
        for row, waits in waiting_in_collectives(rows).items():
            waited = sum(waits)
            found[row].waiting += waited / total
            found[row].communication += (sum(span.length for span in rows[row]) - waited) / total
    return list(found.values())


def read(path: pathlib.Path, groups: list[list[str]]) -> list[DeviceTime]:
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    return breakdown(parse(text), groups)


def collective_share(times: list[DeviceTime]) -> float:
    """Part of the time in collectives, waiting for others included; the mean of the devices."""
    return sum(time.collectives for time in times) / len(times)
