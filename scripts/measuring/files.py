"""Files that a script writes after long work: checks before the work, and the writing.
No output replaces an input of the script or, without --force, a file that is not of the output's own kind."""
import contextlib
import os
import pathlib
import stat
import tempfile
from collections.abc import Iterable


MOST_READ = 16 << 20  # bytes of a file whose kind is looked for


class FileError(Exception):
    """str() is one line with the remedy."""
    code = 1  # that the script exits with


class Refused(FileError):
    """The existing file must not be replaced."""
    code = 2


class Kind:
    """Files of one kind: their bytes start with `beginning`, blanks before it skipped, and contain the marks."""

    def __init__(self, beginning: bytes, *marks: bytes):
        self.beginning = beginning
        self.marks = marks

    def fits(self, data: bytes) -> bool:
        return data.lstrip().startswith(self.beginning) and all(mark in data for mark in self.marks)


def is_free(path: str | os.PathLike, kind: Kind) -> bool:
    """Whether the file is missing, empty or of this kind."""
    with contextlib.suppress(OSError):
        if not os.path.isfile(path) or not os.path.getsize(path):
            return True
        with open(path, "rb") as file:
            return kind.fits(file.read(MOST_READ))
    return False


def check_replaced(path: str | os.PathLike, what: str, kind: Kind, inputs: Iterable[str | os.PathLike] = (),
                   force: bool = False) -> None:
    """Throws Refused if writing the file would destroy one of the inputs, by whatever name, or without `force` a file of
    another kind."""
    for one in inputs:
        with contextlib.suppress(OSError):
            if os.path.samefile(path, one):
                raise Refused(f"{path}: this command reads it; name another file for the {what}")
    if not force and not is_free(path, kind):
        raise Refused(f"{path}: is not a {what} of this script, and would be lost; name another file, or replace this one "
                      "with --force")


def _found(path: pathlib.Path) -> os.stat_result | None:
    """Status of the file, links followed; None without a file."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def check(path: str | os.PathLike, what: str) -> None:
    """That a file of this name can be written or replaced. Leaves nothing behind. Throws FileError."""
    path = pathlib.Path(path)
    try:
        found = _found(path)
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
    """All of it or nothing: a reader never sees half a file. Links are followed. Throws OSError."""
    target = pathlib.Path(path).resolve()
    if target.exists() and not target.is_file():
        raise OSError(0, "it is no regular file")
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_text(value)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)
