"""Checks output files before a long measurement, and writes them afterwards. No output replaces an input of the script.
Without --force, an output replaces only a file of the same kind."""
import contextlib
import os
import pathlib
import stat
import tempfile
from collections.abc import Iterable


MOST_READ = 16 << 20  # number of bytes that are searched for the marks of a kind


class FileError(Exception):
    """An output file cannot be written. str() is one line with the remedy."""
    code = 1  # exit code of the script


class Refused(FileError):
    """The existing file must not be replaced."""
    code = 2


class Kind:
    """A kind of file. After leading blanks, such a file begins with `beginning`. The file also contains all marks."""

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
    """Raises Refused if the file is one of the inputs, even under another name. Without `force`, also raises Refused if
    the file is of another kind."""
    for one in inputs:
        with contextlib.suppress(OSError):
            if os.path.samefile(path, one):
                raise Refused(f"{path}: is also an input file; name another file for the {what}")
    if not force and not is_free(path, kind):
        raise Refused(f"{path}: is not a {what} of this script, and would be lost; name another file, or replace this one "
                      "with --force")


def _found(path: pathlib.Path) -> os.stat_result | None:
    """Returns the status of the file, or of the target of a link. None if the file does not exist."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def check(path: str | os.PathLike, what: str) -> None:
    """Checks that a file with this name can be written or replaced, without changing any file. Raises FileError."""
    path = pathlib.Path(path)
    try:
        found = _found(path)
        if found is not None and not stat.S_ISREG(found.st_mode):
            kind = "it is a folder" if stat.S_ISDIR(found.st_mode) else "it is not a regular file"
            raise FileError(f"cannot write the {what} {path}: {kind}; name another file")
        if found is not None and not os.access(path, os.W_OK):
            raise FileError(f"cannot write the {what} {path}: it is read-only; name another file")
        folder = path.resolve().parent
        if not folder.is_dir():
            raise FileError(f"cannot write the {what} {path}: there is no folder {folder}; create it, or name another file")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, RuntimeError) as error:  # RuntimeError: circular links
        why = getattr(error, "strerror", None) or "its symbolic link is broken"
        raise FileError(f"cannot write the {what} {path}: {why}; name another file") from None


def write_text(path: str | os.PathLike, value: str) -> None:
    """Writes the whole text or nothing, so readers never see an incomplete file. Follows links. Raises OSError."""
    target = pathlib.Path(path).resolve()
    if target.exists() and not target.is_file():
        raise OSError(0, "it is not a regular file")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_text(value)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
