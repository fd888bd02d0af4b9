"""Reads keys and small tensors of GGUF files, using only the standard library."""
import array
import math
import pathlib
import struct

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
TENSORS = {0: "f", 26: "i"}  # supported types: f32, i32


class File:
    def __init__(self, path: pathlib.Path):
        self._data, self._at = path.read_bytes(), 8
        if self._data[:4] != b"GGUF":
            raise ValueError(f"{path} is not a GGUF file")
        tensors, keys = self._scalar("Q"), self._scalar("Q")
        self.keys = {}
        for _ in range(keys):
            name = self._string()
            self.keys[name] = self._value(self._scalar("I"))
        self._tensors = {}
        for _ in range(tensors):
            name = self._string()
            shape = [self._scalar("Q") for _ in range(self._scalar("I"))]
            kind, offset = self._scalar("I"), self._scalar("Q")
            self._tensors[name] = (shape, kind, offset)
        alignment = self.keys.get("general.alignment", 32)
        self._begin = -(-self._at // alignment) * alignment

    def shape(self, name: str) -> list[int]:
        return self._tensors[name][0]

    def values(self, name: str) -> array.array:
        shape, kind, offset = self._tensors[name]
        values = array.array(TENSORS[kind])
        values.frombytes(self._data[self._begin + offset:self._begin + offset + 4 * math.prod(shape)])
        return values

    def _scalar(self, code: str):
        value = struct.unpack_from("<" + code, self._data, self._at)[0]
        self._at += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        size = self._scalar("Q")
        self._at += size
        return self._data[self._at - size:self._at].decode(errors="replace")

    def _value(self, kind: int):
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            inner, count = self._scalar("I"), self._scalar("Q")
            return [self._value(inner) for _ in range(count)]
        return self._scalar(SCALARS[kind])
