"""The models in a repository of GGUF files: quantizations, parts of split models, and the choice of one model by name."""
from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

PREFERRED = ("Q4_K_M", "Q4_0")
MOST_LISTED = 40  # number of quantizations in a message
NAME = re.compile(r"(?P<repository>[^/:\s]+/[^/:\s]+)(?::(?P<quant>[^:\s](?:[^:\x00-\x1f]*[^:\s])?))?")
PART = re.compile(r"-(\d{5})-of-(\d{5})$")
TYPE = re.compile(r"(?:^|[-._/])((?:UD-)?(?:I?Q[1-9](?:_(?:[0-9]|K|NL|XXS|XS|S|M|L|XL|R\d))*|TQ\d_\d|MXFP4|NVFP4|"
                  r"BF16|FP?16|FP?32|F64))(?=[-._/]|$)", re.IGNORECASE)


class HubError(ValueError):
    """A model cannot be found or downloaded. The message is one line with a remedy."""


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
    def name(self) -> str:
        """Path of the first file without the suffix."""
        return self.files[0].removesuffix(".gguf")

    @property
    def label(self) -> str:
        return self.quant or self.stem

    @property
    def complete(self) -> bool:
        return len(self.files) == self.parts


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
    suffix, or a word of it, such as "7b-Q4_0". Equal texts go before texts that differ in case."""
    text = quant.lower()
    word = re.compile(rf"(?:^|[-._/]){re.escape(text)}(?=[-./]|$)")
    tests = (lambda model: model.name == quant, lambda model: model.quant == quant, lambda model: model.stem == quant,
             lambda model: model.quant.lower() == text, lambda model: model.stem.lower() == text,
             lambda model: word.search(model.stem.lower()))
    return next(filter(None, ([model for model in models if test(model)] for test in tests)), [])


def selector(model: Model, models: Sequence[Model]) -> str:
    """The shortest text that selects the model: the quantization, the name without the part, or the name."""
    return next((text for text in (model.label, model.stem) if matching(models, text) == [model]), model.name)


def others(models: Sequence[Model]) -> str:
    """The remedy after a wrong choice."""
    labels = sorted({model.label for model in models if model.complete})
    if not labels:
        return "name another repository"
    more = f" and {len(labels) - MOST_LISTED} more" if len(labels) > MOST_LISTED else ""
    return f"choose one of {', '.join(labels[:MOST_LISTED])}{more}"


def choose(repository: str, models: Sequence[Model], quant: str | None) -> Model:
    """Chooses the model of a quantization, or Q4_K_M, else Q4_0, else the smallest model. Prefers complete models."""
    if not models:
        raise HubError(f"{repository} contains no GGUF model; name a repository with GGUF files")
    if quant is None:
        usable = [model for model in models if model.complete] or models
        preferred = ([model for model in usable if model.quant == label] for label in PREFERRED)
        found = next(filter(None, preferred), [min(usable, key=lambda model: (model.bytes, model.files))])
    else:
        found = matching(models, quant)
        found = [model for model in found if model.complete] or found
    if not found:
        raise HubError(f"{repository} has no quantization {quant}; {others(models)}")
    if len(found) > 1:
        names = ", ".join(selector(model, models) for model in found[:MOST_LISTED])
        raise HubError(f"{repository} has {len(found)} models of {found[0].label}: {names}; name one of these as "
                       f"{repository}:FILE, or {others(models)}")
    if not found[0].complete:
        raise HubError(f"{repository} has only {len(found[0].files)} of the {found[0].parts} files of "
                       f"{found[0].stem}; {others(models)}")
    return found[0]


def parse_name(name: str) -> tuple[str, str | None]:
    parsed = NAME.fullmatch(name)
    if parsed is None:
        raise HubError(f"'{name}' is not OWNER/REPO or OWNER/REPO:QUANT, such as "
                       "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M")
    return parsed["repository"], parsed["quant"]
