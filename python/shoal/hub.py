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

PREFERRED = ("Q4_K_M", "Q4_0")
MOST_LISTED = 40  # number of quantizations in a message
TIMEOUT = 10.0  # seconds until the hub answers the question for the list of files
NAME = re.compile(r"(?P<repository>[^/:\s]+/[^/:\s]+)(?::(?P<quant>[^:\s]+))?")
PART = re.compile(r"-(\d{5})-of-(\d{5})$")
TYPE = re.compile(r"(?:^|[-._/])((?:UD-)?(?:I?Q[1-9](?:_(?:[0-9]|K|NL|XXS|XS|S|M|L|XL|R\d))*|TQ\d_\d|MXFP4|NVFP4|"
                  r"BF16|FP?16|FP?32|F64))(?=[-._/]|$)", re.IGNORECASE)


class HubError(RuntimeError):
    """A model cannot be found or downloaded. The message is one line with a remedy."""


class Unreachable(HubError):
    """The hub gives no answer. The cache may contain the model."""


@dataclasses.dataclass(frozen=True)
class Model:
    """The files of one quantization of a model: one file, or all parts of a split model in order."""
    files: tuple[str, ...]  # paths in the repository
    bytes: int
    quant: str  # such as "Q4_K_M"; "" if the file name contains no known type
    parts: int  # number of files that the file names announce

    @property
    def stem(self) -> str:
        """Path of the first file without the number of the part and the suffix."""
        return PART.sub("", self.files[0].removesuffix(".gguf"))

    @property
    def label(self) -> str:
        return self.quant or self.stem

    @property
    def complete(self) -> bool:
        return len(self.files) == self.parts


@dataclasses.dataclass(frozen=True)
class CachedModel:
    """A model in the cache."""
    name: str  # OWNER/REPO:QUANT, as pull() accepts it
    repository: str
    quant: str
    bytes: int
    path: pathlib.Path  # of the first file
    last_used: float  # Unix time of the last access to a file


def quant_of(stem: str) -> str:
    """The type in the file name, else the type in the name of a folder: "BF16/m-Q8_0" -> "Q8_0"."""
    for part in reversed(stem.split("/")):
        if found := TYPE.findall(part):
            return found[-1].upper()
    return ""


def is_model(path: str) -> bool:
    """Whether a file may contain a language model: not a projector for images, and not an importance matrix."""
    name = path.rsplit("/", 1)[-1].lower()
    is_matrix = "imatrix" in name and (name.startswith("imatrix") or not quant_of(path.removesuffix(".gguf")))
    return name.endswith(".gguf") and "mmproj" not in name and not is_matrix


def models_of(files: dict[str, int]) -> list[Model]:
    """Groups the files of a repository, given with their sizes, by models. Split models may be incomplete."""
    groups: dict[tuple[str, int], list[str]] = {}
    for path in sorted(filter(is_model, files)):
        stem = path.removesuffix(".gguf")
        part = PART.search(stem)
        groups.setdefault((PART.sub("", stem), int(part[2]) if part else 1), []).append(path)
    return [Model(tuple(paths), sum(files[path] for path in paths), quant_of(stem), parts)
            for (stem, parts), paths in groups.items()]


def matching(models: Sequence[Model], quant: str) -> list[Model]:
    """The models of a quantization. A text that is no quantization selects files by name: the whole name without
    suffix, or a word of it, such as "7b-Q4_0"."""
    text = quant.lower()
    word = re.compile(rf"(?:^|[-._/]){re.escape(text)}(?=[-./]|$)")
    tests = (lambda model: model.quant.lower() == text, lambda model: model.stem.lower() == text,
             lambda model: word.search(model.stem.lower()))
    return next(filter(None, ([model for model in models if test(model)] for test in tests)), [])


def listing(models: Sequence[Model]) -> str:
    labels = sorted({model.label for model in models})
    more = f" and {len(labels) - MOST_LISTED} more" if len(labels) > MOST_LISTED else ""
    return ", ".join(labels[:MOST_LISTED]) + more


def choose(repository: str, models: Sequence[Model], quant: str | None) -> Model:
    """Chooses the model of a quantization, or Q4_K_M, else Q4_0, else the smallest model."""
    if not models:
        raise HubError(f"{repository} contains no GGUF model; name a repository with GGUF files")
    if quant is None:
        preferred = ([model for model in models if model.quant == label] for label in PREFERRED)
        found = next(filter(None, preferred), [min(models, key=lambda model: (model.bytes, model.files))])
    else:
        found = matching(models, quant)
    if not found:
        raise HubError(f"{repository} has no quantization {quant}; choose one of {listing(models)}")
    if len(found) > 1:
        stems = ", ".join(model.stem for model in found[:MOST_LISTED])
        raise HubError(f"{repository} has {len(found)} models of {found[0].label}: {stems}; name one of these as "
                       f"{repository}:FILE, or another quantization: {listing(models)}")
    if not found[0].complete:
        raise HubError(f"{repository} has only {len(found[0].files)} of the {found[0].parts} files of "
                       f"{found[0].stem}; choose another quantization: {listing(models)}")
    return found[0]


def parse_name(name: str) -> tuple[str, str | None]:
    parsed = NAME.fullmatch(name)
    if parsed is None:
        raise HubError(f"'{name}' is not OWNER/REPO or OWNER/REPO:QUANT, such as "
                       "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M")
    return parsed["repository"], parsed["quant"]


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
        return HubError(f"the disk of {cache_folder()} is full; free space, or set HF_HOME to a folder on another disk")
    return HubError(f"{cache_folder()}: {error.strerror or one_line(error)}; check HF_HOME")


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
    """The cached files of a repository: the branch main, else the revision that changed last."""
    repository: str
    folder: pathlib.Path
    files: dict[str, int]
    used: dict[str, float]  # Unix times

    def models(self) -> list[Model]:
        return [model for model in models_of(self.files) if model.complete]

    def path(self, model: Model) -> pathlib.Path:
        return self.folder / model.files[0]


def snapshots() -> list[Snapshot]:
    """The repositories in the cache, sorted by their names."""
    import huggingface_hub
    from huggingface_hub.errors import CacheNotFound
    try:
        repos = huggingface_hub.scan_cache_dir().repos
    except CacheNotFound:
        return []
    except (OSError, ValueError) as error:
        raise HubError(f"the cache {cache_folder()} cannot be read: {one_line(error)}; check HF_HOME") from None
    found = []
    for repo in sorted(repos, key=lambda repo: repo.repo_id):
        if repo.repo_type != "model" or not repo.revisions:
            continue
        newest = max(repo.revisions, key=lambda revision: ("main" in revision.refs, revision.last_modified))
        files = {str(file.file_path.relative_to(newest.snapshot_path)): file for file in newest.files}
        found.append(Snapshot(repo.repo_id, newest.snapshot_path,
                              {name: file.size_on_disk for name, file in files.items()},
                              {name: file.blob_last_accessed for name, file in files.items()}))
    return found


def cached_models() -> list[CachedModel]:
    """All complete models in the cache, sorted by their names. Throws HubError if the cache cannot be read."""
    found = []
    for snapshot in snapshots():
        models = snapshot.models()
        for model in models:
            is_only = len(matching(models, model.label)) == 1
            name = f"{snapshot.repository}:{model.label if is_only else model.stem}"
            last_used = max(snapshot.used[file] for file in model.files)
            found.append(CachedModel(name, snapshot.repository, model.quant, model.bytes, snapshot.path(model), last_used))
    return sorted(found, key=lambda model: model.name)


def from_cache(repository: str, quant: str | None, reason: Unreachable) -> pathlib.Path:
    """The file in the cache. Throws `reason` if the cache contains no such file."""
    for snapshot in snapshots():
        models = snapshot.models()
        if snapshot.repository == repository and models and (quant is None or matching(models, quant)):
            return snapshot.path(choose(repository, models, quant))
    raise reason


def is_cached(repository: str, file: str) -> bool:
    import huggingface_hub
    return isinstance(huggingface_hub.try_to_load_from_cache(repository, file), str)


def require_space(repository: str, model: Model, files: dict[str, int]) -> None:
    """Throws HubError if the disk of the cache has too little space for the missing files."""
    needed = sum(files[file] for file in model.files if not is_cached(repository, file))
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HubError(f"{folder}: {error.strerror}; set HF_HOME to a folder that you may write") from None
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise HubError(f"{repository}:{model.label} needs {size_text(needed)}, but the disk of {folder} has "
                       f"{size_text(free)} left; free space, or set HF_HOME to a folder on another disk")


def download(repository: str, model: Model) -> pathlib.Path:
    """Downloads the missing files, and returns the path of the first file."""
    import huggingface_hub
    paths = []
    for file in model.files:
        with one_line_errors(repository):
            paths.append(huggingface_hub.hf_hub_download(repository, file, library_name="shoal"))
    return pathlib.Path(paths[0])


def be_quiet(progress: bool) -> None:
    """Suppresses the messages of huggingface_hub. Its progress bars appear only if stderr is a terminal."""
    import huggingface_hub
    warnings.filterwarnings("ignore", module="huggingface_hub")
    huggingface_hub.logging.set_verbosity_error()
    if not progress and os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS") is None:
        huggingface_hub.utils.disable_progress_bars()


def pull(name: str, progress: bool = True) -> pathlib.Path:
    """Finds the model OWNER/REPO[:QUANT], downloads its missing files, and returns the path of its first file.

    Uses the cache without any request if HF_HUB_OFFLINE is set, and also if the hub cannot be reached. Throws HubError
    if there is no such model, or the files cannot be downloaded.
    """
    repository, quant = parse_name(name)
    with library():
        be_quiet(progress)
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
