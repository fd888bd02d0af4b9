"""Computes the number of weight bytes in a GGUF file that the generation of one token reads.

Every tensor counts, with two exceptions. If the output head is a separate tensor, the embedding table does not count,
because a token reads only one row of it. In a layer with experts, only the used experts count. The KV cache is not a
weight and does not count.

    1b, tied:   every byte of its tensors
    8b, untied: all except token_embd.weight
"""

import dataclasses
import io
import os
import struct

from errors import CompareError

# Format characters of the struct module, by the type number of a metadata value. Type 8 is a string, and type 9 is an
# array.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
DEFAULT_ALIGNMENT = 32


class Reader:
    """Reads the values of a header in order."""

    def __init__(self, file: io.BufferedReader):
        self.file = file

    def bytes(self, count: int) -> bytes:
        data = self.file.read(count)
        if len(data) != count:
            raise ValueError("it ends inside its header")
        return data

    def scalar(self, form: str):
        return struct.unpack("<" + form, self.bytes(struct.calcsize("<" + form)))[0]

    def string(self) -> str:
        return self.bytes(self.scalar("Q")).decode("utf-8", "replace")

    def value(self, kind: int):
        """Reads a metadata value. Skips an array and returns None for it."""
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            if kind not in SCALARS:
                raise ValueError(f"it has metadata of the unknown type {kind}")
            return self.scalar(SCALARS[kind])
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind in SCALARS:
            self.bytes(count * struct.calcsize("<" + SCALARS[kind]))
        else:
            for _ in range(count):
                self.value(kind)
        return None


@dataclasses.dataclass(frozen=True)
class Weights:
    metadata: dict  # all values except arrays
    sizes: dict  # bytes of each tensor, including the padding after the tensor

    def bytes_per_token(self) -> int:
        experts = self.metadata.get(f"{self.metadata.get('general.architecture')}.expert_count", 0)
        used = self.metadata.get(f"{self.metadata.get('general.architecture')}.expert_used_count", 0)
        total = 0
        for name, size in self.sizes.items():
            if name == "token_embd.weight" and "output.weight" in self.sizes:
                continue
            total += size * used // experts if "_exps." in name and experts else size
        return total


def read_header(file: io.BufferedReader, file_size: int) -> Weights:
    reader = Reader(file)
    if reader.bytes(4) != b"GGUF":
        raise ValueError("it is not a GGUF file")
    version = reader.scalar("I")
    if version not in (2, 3):
        raise ValueError(f"it has GGUF version {version}, which is not supported")
    tensors, values = reader.scalar("Q"), reader.scalar("Q")
    metadata = {}
    for _ in range(values):
        key = reader.string()
        value = reader.value(reader.scalar("I"))
        if value is not None:
            metadata[key] = value
    offsets = {}
    for _ in range(tensors):
        name = reader.string()
        reader.bytes(8 * reader.scalar("I") + 4)  # skips the shape and the type
        offsets[name] = reader.scalar("Q")
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    begin = -(-file.tell() // alignment) * alignment
    ends = sorted(offsets.values())[1:] + [file_size - begin]
    ordered = sorted(offsets, key=offsets.get)
    return Weights(metadata, {name: end - offsets[name] for name, end in zip(ordered, ends)})


def read_weights(path: str) -> Weights:
    try:
        with open(path, "rb") as file:
            return read_header(file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise CompareError(f"cannot read {path}: {error.strerror}; scripts/make_model.py writes models") from error
    except (ValueError, struct.error, OverflowError, MemoryError) as error:
        raise CompareError(f"cannot use {path}: {error}; scripts/make_model.py writes models") from error
