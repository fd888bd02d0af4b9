"""Models by name: downloads GGUF files from a hub (huggingface.co, or HF_ENDPOINT) and lists the downloaded models.

    python -m shoal.hub pull bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M    prints the path of the (first) file
    python -m shoal.hub list [--output json]

A name is OWNER/REPO or OWNER/REPO:QUANT. huggingface_hub has the cache, the token and the settings (HF_HOME, HF_TOKEN,
HF_ENDPOINT, HF_HUB_OFFLINE). After a broken connection, huggingface_hub resumes the download. When the process ends, a
partial file is discarded, and only complete files remain in the cache.

pull prints only the path on stdout. Each failure is one line on stderr. `pull --output json` prints {"path": ...} or
{"error": ...} instead.
"""
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import json
import logging
import os
import pathlib
import re
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import NoReturn

from .hub_models import HubError, Model, choose, matching, models_of, parse_name, selector

TIMEOUT = 10.0  # seconds until the hub answers the question for the list of files
FOLDER = re.compile(r"models--(?:(?!--).)+--(?:(?!--).)+")  # of a repository in the cache
LOGGER = logging.getLogger("shoal")


class Unreachable(HubError):
    """The hub gives no answer. The cache may contain the model."""


@dataclasses.dataclass(frozen=True)
class CachedModel:
    """A model in the cache."""
    name: str  # OWNER/REPO:QUANT, as pull() accepts it
    repository: str
    quant: str
    bytes: int
    path: pathlib.Path  # of the first file
    last_used: float  # Unix time of the last access to a file


def one_line(error: BaseException | str) -> str:
    """The first line of a message, without control characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = "".join(c if c.isprintable() else " " for c in (lines[0] if lines else type(error).__name__))
    return text[:300]


def endpoint() -> str:
    from huggingface_hub import constants
    return constants.ENDPOINT


def cache_folder() -> pathlib.Path:
    from huggingface_hub import constants
    return pathlib.Path(constants.HF_HUB_CACHE)


def cache_variable() -> str:
    """The environment variable that names the folder of the cache."""
    return "HF_HUB_CACHE" if "HF_HUB_CACHE" in os.environ else "HF_HOME"


def answered(repository: str, status: int, error: BaseException) -> HubError:
    """The error for a status that the hub sent."""
    if status == 401:
        return HubError(f"{endpoint()} refuses the token for {repository}; check HF_TOKEN")
    if status == 403:
        return HubError(f"{endpoint()} forbids access to {repository}; set HF_TOKEN to a token that may read it")
    if status == 429 or status >= 500:
        return Unreachable(f"{endpoint()} answered {repository} with status {status}; try again later")
    return HubError(f"{endpoint()} answered {repository} with status {status}: {one_line(error)}; check HF_ENDPOINT")


def unreachable(reason: BaseException | str) -> Unreachable:
    return Unreachable(f"{endpoint()} cannot be reached ({one_line(reason)}); check the network and HF_ENDPOINT")


def system_error(error: OSError) -> HubError:
    if error.errno is None:  # a file with a wrong size
        return HubError(f"the download failed: {one_line(error)}; run the command again")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return HubError(f"the disk of {cache_folder()} is full; free space, or set {cache_variable()} to a folder on "
                        "another disk")
    return HubError(f"{cache_folder()}: {error.strerror or one_line(error)}; check {cache_variable()}")


@contextlib.contextmanager
def one_line_errors(repository: str) -> Iterator[None]:
    """Turns the exceptions of huggingface_hub into HubError."""
    from huggingface_hub import errors
    try:
        yield
    except errors.OfflineModeIsEnabled:
        raise Unreachable(f"{repository} is not in the cache ({cache_folder()}), and HF_HUB_OFFLINE forbids downloads; "
                          "unset HF_HUB_OFFLINE") from None
    except errors.GatedRepoError:
        raise HubError(f"{repository} is gated; accept its terms at {endpoint()}/{repository}, and set HF_TOKEN to a "
                       "token of your account") from None
    except errors.RepositoryNotFoundError:
        raise HubError(f"{endpoint()} has no repository {repository}, or it is private; check the name, or set HF_TOKEN "
                       "to a token that may read it") from None
    except errors.HFValidationError:
        raise HubError(f"'{repository}' is not the name of a repository; give OWNER/REPO") from None
    except errors.LocalEntryNotFoundError as error:
        cause = error.__cause__
        if isinstance(cause, errors.HfHubHTTPError):
            raise answered(repository, cause.response.status_code, cause) from None
        raise unreachable(cause or error) from None
    except errors.HfHubHTTPError as error:
        raise answered(repository, error.response.status_code, error) from None
    except errors.HTTPError as error:  # the base class of the HTTP library, for all failures without an answer
        raise unreachable(error) from None
    except OSError as error:
        raise system_error(error) from None
    except Exception as error:  # answers of servers that are no hubs cause various exceptions
        raise HubError(f"{endpoint()} gave no usable answer for {repository} ({type(error).__name__}: "
                       f"{one_line(error)}); check HF_ENDPOINT") from None


def remote_files(repository: str) -> dict[str, int]:
    """The files of a repository and their sizes."""
    import huggingface_hub
    with one_line_errors(repository):
        info = huggingface_hub.HfApi(library_name="shoal").model_info(repository, timeout=TIMEOUT, files_metadata=True)
        return {file.rfilename: file.size or 0 for file in info.siblings or []}


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The cached GGUF files of one revision of a repository."""
    folder: pathlib.Path
    files: dict[str, os.stat_result]  # by the path in the repository

    def models(self) -> list[Model]:
        sizes = {file: status.st_size for file, status in self.files.items()}
        return [model for model in models_of(sizes) if model.complete]


def snapshot_of(folder: pathlib.Path) -> Snapshot:
    """Raises OSError. Files without data, which an interrupted cleanup leaves, do not count."""
    paths = [pathlib.Path(parent, name) for parent, _, names in os.walk(folder, onerror=fail) for name in names]
    return Snapshot(folder, {str(path.relative_to(folder)): path.stat() for path in paths if path.is_file()})


def fail(error: OSError) -> NoReturn:
    raise error


def folder_of(repository: str) -> pathlib.Path:
    return cache_folder() / f"models--{repository.replace('/', '--')}"


def snapshots(folder: pathlib.Path) -> list[Snapshot]:
    """The revisions of a repository in the cache: the branch main, then the newest revisions. Reports a folder that
    cannot be read."""
    try:
        main = folder / "refs" / "main"
        commit = main.read_bytes() if main.is_file() else b""
        revisions = [entry for entry in (folder / "snapshots").iterdir() if entry.is_dir()]
        revisions.sort(key=lambda entry: (os.fsencode(entry.name) == commit, entry.stat().st_mtime), reverse=True)
        return [snapshot_of(revision) for revision in revisions]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        LOGGER.warning("%s cannot be read: %s", folder, error.strerror)
        return []


def cached(folder: pathlib.Path) -> dict[Model, Snapshot]:
    """The complete models of a repository in the cache, each with its first revision."""
    found: dict[tuple[str, ...], tuple[Model, Snapshot]] = {}
    for snapshot in snapshots(folder):
        for model in snapshot.models():
            found.setdefault(model.files, (model, snapshot))
    return dict(found.values())


def cached_models() -> list[CachedModel]:
    """All complete models in the cache, sorted by their names. Raises HubError if the cache cannot be read."""
    try:
        folders = sorted(entry for entry in cache_folder().iterdir() if FOLDER.fullmatch(entry.name))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HubError(f"the cache {cache_folder()} cannot be read: {error.strerror}; check {cache_variable()}") from None
    found = []
    for folder in folders:
        repository = "/".join(folder.name.split("--")[1:])
        models = cached(folder)
        for model, snapshot in models.items():
            name = f"{repository}:{selector(model, list(models))}"
            last_used = max(snapshot.files[file].st_atime for file in model.files)
            found.append(CachedModel(name, repository, model.quant, model.bytes, snapshot.folder / model.files[0], last_used))
    return sorted(found, key=lambda model: model.name)


def from_cache(repository: str, quant: str | None, reason: Unreachable) -> pathlib.Path:
    """The file in the cache. Raises `reason` if the cache contains no such file."""
    models = cached(folder_of(repository))
    if not models or (quant is not None and not matching(list(models), quant)):
        raise reason
    model = choose(repository, list(models), quant)
    return models[model].folder / model.files[0]


def require_space(repository: str, model: Model, files: dict[str, int]) -> None:
    """Raises HubError if the disk of the cache has too little space for the missing files. A cached file of any revision
    with the same name and size counts as the same file."""
    known = {(file, status.st_size) for snapshot in snapshots(folder_of(repository))
             for file, status in snapshot.files.items()}
    needed = sum(files[file] for file in model.files if (file, files[file]) not in known)
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HubError(f"{folder}: {error.strerror}; set {cache_variable()} to a folder that you may write") from None
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise HubError(f"{repository}:{model.label} needs {size_text(needed)}, but the disk of {folder} has "
                       f"{size_text(free)} left; free space, or set {cache_variable()} to a folder on another disk")


def download(repository: str, model: Model) -> pathlib.Path:
    """Downloads the missing files, all of one commit, and returns the path of the first file."""
    import huggingface_hub
    paths: list[pathlib.Path] = []
    commit = None  # for the first file: the commit of the branch main
    for file in model.files:
        with one_line_errors(repository):
            paths.append(pathlib.Path(huggingface_hub.hf_hub_download(repository, file, revision=commit,
                                                                      library_name="shoal")))
        commit = paths[0].parents[file.count("/")].name
    return paths[0]


def check_token() -> None:
    """Raises HubError for a token that no request can contain."""
    import huggingface_hub
    source = "HF_TOKEN" if os.environ.get("HF_TOKEN") else huggingface_hub.constants.HF_TOKEN_PATH
    try:
        token = huggingface_hub.get_token() or ""
    except (OSError, UnicodeError) as error:
        raise HubError(f"the token in {source} cannot be read: {one_line(error)}; run `hf auth login` again") from None
    if not (token.isascii() and token.isprintable()):
        raise HubError(f"the token in {source} has characters that no token has; correct it, or run `hf auth login`")


def be_quiet(progress: bool) -> None:
    """Suppresses the messages of huggingface_hub. Its progress bars appear only if stderr is a terminal."""
    import huggingface_hub
    warnings.filterwarnings("ignore", module="huggingface_hub")
    huggingface_hub.logging.set_verbosity_error()
    if not progress and os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS") is None:
        huggingface_hub.utils.disable_progress_bars()


def pull(name: str, progress: bool = True) -> pathlib.Path:
    """Finds the model OWNER/REPO[:QUANT], downloads its missing files, and returns the path of its first file.

    Uses the cache without any request if HF_HUB_OFFLINE is set, and also if the hub cannot be reached. Raises HubError
    if there is no such model, or the files cannot be downloaded.
    """
    repository, quant = parse_name(name)
    with library():
        be_quiet(progress)
        check_token()
        try:
            files = remote_files(repository)
            model = choose(repository, models_of(files), quant)
            require_space(repository, model, files)
            return download(repository, model)
        except Unreachable as reason:
            return from_cache(repository, quant, reason)


@contextlib.contextmanager
def library() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise HubError(f"{one_line(error)}; install the package with `{sys.executable} -m pip install "
                       "huggingface_hub`") from None


def size_text(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def table_of(models: Sequence[CachedModel]) -> str:
    rows = [("name", "quantization", "size", "last use", "path")]
    for model in models:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(model.last_used))
        rows.append((model.name, model.quant or "-", size_text(model.bytes), used, str(model.path)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "".join("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[-1]]) + "\n" for row in rows)


def as_json(models: Sequence[CachedModel]) -> str:
    def entry(model: CachedModel) -> dict[str, object]:
        used = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(model.last_used))
        return {"name": model.name, "repository": model.repository, "quantization": model.quant or None,
                "bytes": model.bytes, "path": str(model.path), "last_used": used}
    return json.dumps({"cache": str(cache_folder()), "models": [entry(model) for model in models]}, indent=2) + "\n"


def list_models(output: str) -> None:
    with library():
        models = cached_models()
        if output == "json":
            sys.stdout.write(as_json(models))
        elif models:
            sys.stdout.write(table_of(models))
        else:
            sys.stderr.write(f"no models in {cache_folder()}; download one with `shoal pull OWNER/REPO`\n")


class Parser(argparse.ArgumentParser):
    """Reports a wrong command line in one line."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"shoal: error: {message}; see {self.prog} --help\n")
        sys.exit(2)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m shoal.hub", description="Downloads GGUF models, and lists downloaded models.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    pull_parser = commands.add_parser("pull", help="download a model, and print the path of its first file")
    pull_parser.add_argument("name", metavar="OWNER/REPO[:QUANT]")
    pull_parser.add_argument("--no-progress", dest="progress", action="store_false", help="show no progress bar")
    list_parser = commands.add_parser("list", help="list the downloaded models")
    for command in (pull_parser, list_parser):
        command.add_argument("--output", choices=("text", "json"), default="text", help="output format")
    return parser.parse_args(arguments)


def stop(number: int, frame: object) -> NoReturn:
    """Ends the process in order, so that no partial files remain. A second signal ends the process at once."""
    signal.signal(number, signal.SIG_DFL)
    raise KeyboardInterrupt(number)


def run(options: argparse.Namespace) -> int:
    as_object = options.output == "json"
    try:
        if options.command == "list":
            list_models(options.output)
            return 0
        path = str(pull(options.name, options.progress))
        sys.stdout.write(json.dumps({"path": path}) + "\n" if as_object else path + "\n")
        return 0
    except HubError as error:
        if as_object and options.command == "pull":
            sys.stdout.write(json.dumps({"error": str(error)}) + "\n")
        else:
            sys.stderr.write(f"shoal: error: {error}\n")
        return 1


def main(arguments: Sequence[str] | None = None) -> int:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("shoal: warning: %(message)s"))
    LOGGER.addHandler(handler)
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        code = run(parse_arguments(arguments))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as error:
        return 128 + int(error.args[0] if error.args else signal.SIGINT)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 141


if __name__ == "__main__":
    sys.exit(main())
