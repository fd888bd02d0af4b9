"""A journal: a file to which a long measurement adds each result immediately.

The format is JSON Lines. The first line contains the settings, {"journal": "tune_split", "version": 1, "settings":
{...}}. Each of the next lines is a record. When add() returns, the record is on the disk. If a crash has truncated the
last record, Journal.open() removes it. Only one process at a time can open a journal.

    with Journal.open(path, "tune_split", settings) as journal:
        for record in journal.records: ...                # of earlier runs
        journal.add({"split": [18, 6], "samples": [...]})
"""
import contextlib
import fcntl
import json
import os
import pathlib
from typing import Any

VERSION = 1
LONGEST_HEADER = 1 << 20  # bytes to read from a file that may not be a journal


class JournalError(Exception):
    """A journal cannot be used. str() is one line with the remedy."""


def _different(before: dict, now: dict) -> str:
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    return ", ".join(f"{name} was {json.dumps(before.get(name))} and is {json.dumps(now.get(name))}" for name in names)


def _line_of(value: dict) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _value(line: bytes) -> dict | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _header(path: str | os.PathLike, line: bytes, own: bytes) -> dict:
    """Parses the first line. `own`: the first line that this run would write. Returns {} if the file is empty or if its
    line is a truncated beginning of `own`. Raises JournalError if the file is not a journal."""
    if not line.endswith(b"\n") and own.startswith(line):
        return {}  # the line is truncated or empty
    value = _value(line) if line.endswith(b"\n") else None
    if value is None or "journal" not in value or not isinstance(value.get("settings"), dict):
        raise JournalError(f"{path}:1: this is not a line of a journal; move the file away, or name another journal")
    return value


def read(path: str | os.PathLike, own: bytes = b"") -> tuple[dict, list[dict], int]:
    """Returns the first line, the records, and the number of bytes of all these lines. `own`: the first line that this
    run would write. Raises JournalError if a line is not a record. Ignores a truncated last line."""
    records: list[dict] = []
    with open(path, "rb") as file:
        line = file.readline(LONGEST_HEADER)
        header = _header(path, line, own)
        if not header:
            return {}, [], 0
        good = len(line)
        for number, line in enumerate(file, 2):
            if not line.endswith(b"\n"):
                break  # the line is truncated
            value = _value(line)
            if value is None:
                raise JournalError(f"{path}:{number}: this is not a line of a journal; move the file away, or name "
                                   "another journal")
            records.append(value)
            good += len(line)
    return header, records, good


class Journal:
    def __init__(self, path: pathlib.Path, file: Any, records: list[dict]):
        self.path = path
        self.records = records  # records of earlier runs, then added records
        self._file = file

    @classmethod
    def open(cls, path: str | os.PathLike, kind: str, settings: dict) -> "Journal":
        """Creates a journal, or opens an existing journal with the same settings."""
        path = pathlib.Path(path)
        own = {"journal": kind, "version": VERSION, "settings": json.loads(json.dumps(settings))}
        try:
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise JournalError(f"{path} is not a regular file; name another journal")
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as on_error:
                journal = cls._opened(path, on_error.enter_context(open(path, "ab")), own)
                on_error.pop_all()
                return journal
        except OSError as error:
            raise JournalError(f"cannot write {path}: {error.strerror}") from None

    @classmethod
    def _opened(cls, path: pathlib.Path, file: Any, own: dict) -> "Journal":
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalError(f"{path} is in use by another run; wait for it, or name another journal") from None
        header, records, good = read(path, _line_of(own))
        journal = cls(path, file, records)
        if header and (header["journal"], header.get("version")) != (own["journal"], VERSION):
            raise JournalError(f"{path} is a journal of {header['journal']}, version {header.get('version')}, not of "
                               f"{own['journal']}, version {VERSION}; name another file")
        if header and header["settings"] != own["settings"]:
            different = _different(header["settings"], own["settings"])
            raise JournalError(f"{path} was made with other settings: {different}; remove it to start again, or name "
                               "another journal")
        file.truncate(good)
        if not header:
            journal._write(own)
        return journal

    def add(self, record: dict) -> None:
        self._write(record)
        self.records.append(record)

    def _write(self, value: dict) -> None:
        try:
            self._file.write(_line_of(value))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise JournalError(f"cannot write {self.path}: {error.strerror}") from None

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
