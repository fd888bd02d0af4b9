"""Files that a script is to write after long work: whether it will be able to, found out before, and writing them."""
import os
import pathlib
import stat
import sys
import tempfile
from typing import TextIO


class FileError(Exception):
    """str() is one line with the remedy."""


def _found(path: pathlib.Path) -> os.stat_result | None:
    """Of what the path leads to, links followed."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def stream_of(path: str | os.PathLike) -> TextIO | None:
    """stdout or stderr where the path leads to what they write to, such as /dev/stdout: that is shared with them."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if os.path.samestat(os.stat(path), os.fstat(stream.fileno())):
                return stream
        except (OSError, ValueError, AttributeError):
            continue
    return None


def is_device(path: str | os.PathLike) -> bool:
    """Something that is written to and never replaced: a character device, or where this process writes anyway."""
    try:
        return stat.S_ISCHR(os.stat(path).st_mode) or stream_of(path) is not None
    except OSError:
        return False


def check(path: str | os.PathLike, what: str, devices: bool = False) -> None:
    """That a file of this name can be written or replaced, or (with `devices`) a device be written to. Leaves nothing
    behind. Throws FileError."""
    path = pathlib.Path(path)
    try:
        found = _found(path)
        if devices and is_device(path):
            return
        if found is not None and not stat.S_ISREG(found.st_mode):
            kind = "it is a folder" if stat.S_ISDIR(found.st_mode) else "it is no regular file"
            raise FileError(f"cannot write the {what} {path}: {kind}; name another")
        if found is not None and not os.access(path, os.W_OK):
            raise FileError(f"cannot write the {what} {path}: it is read-only; name another")
        folder = path.resolve().parent
        if not folder.is_dir():
            raise FileError(f"cannot write the {what} {path}: there is no folder {folder}; make it, or name another")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        why = getattr(error, "strerror", None) or "its links lead nowhere"
        raise FileError(f"cannot write the {what} {path}: {why}; name another") from None


def write_text(path: str | os.PathLike, value: str) -> None:
    """All of it or nothing: a reader never sees half a file. Links are followed; devices are written to, not replaced.
    Throws OSError."""
    stream = stream_of(path)
    if stream is not None:
        stream.write(value)
        stream.flush()
        return
    if is_device(path):
        pathlib.Path(path).write_text(value)
        return
    target = pathlib.Path(path).resolve()
    if target.exists() and not target.is_file():
        raise OSError(0, "it is no regular file")
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_text(value)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)
