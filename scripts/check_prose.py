#!/usr/bin/env python3
"""Rejects phrases that readers have to read twice (CONTRIBUTING.md, "Prose"). Checks comments, pages and messages.

Each line of PHRASES contains a pattern and its replacement. Each line of prose_exceptions.txt contains an exception:
file, words around the phrase, and reason, separated by tabs. Prints each rejected phrase. Exits with 1 if there is any.
"""
import pathlib
import re
import subprocess
import sys

PHRASES = {
    r"(?:^\W*|[.:;!?]\s+)Of (?!course)": "start with the subject, or with 'With ...'",
    r"\b(?:lies|lie|lay|lain|lying)\b": "is stored, is placed",
    r"\b(?:is|are|was|were|be|been) (?:told|had|brought|mended|dear)\b": "is notified, has, is streamed, is fixed, is expensive",
    r"\b(?:bring|brings|bringing)\b": "stream, copy, add",
    r"\bmakes? nothing of\b|\b(?:is|are|was|were|has|have|had) gone\b": "ignores; was removed, was destroyed, is closed",
    r"\b(?:go|goes|going|went) back\b": "rewind, return",
    r"\b(?:those|that|the ones?) of\b": "repeat the noun",
    r"\bthe others\b": "'the other' with its noun",
    r"\bso many\b|\bpeople\b|\bnobody\b": "the number, users, no user",
    r", too\b": "also, before the verb",
    r"\bno multiple of\b|\bbeside\b": "not a multiple of; next to, compared with",
    r"\bforgets?\b|\bmade of two\b": "evict, discard; recurrent or sliding-window layers; a meta device of two",
}
ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1]).resolve()
PAGES, CODE = (".md", ".py", ".cmake"), (".h", ".c", ".cpp", ".cu", ".cuh", ".def", ".inc")
SKIPPED = ("build/", "scripts/check_prose.py", "tests/project/checks_test.py")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"(?:^|(?<=\s))//[^\n]*(?:\n\s*//[^\n]*)*|(?:^|(?<=\s))/\*.*?\*/", re.MULTILINE | re.DOTALL)
STRINGS = re.compile(r'"(?:\\.|[^"\\\n])*"(?:\s*"(?:\\.|[^"\\\n])*")*')


def blank(found: re.Match) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def texts_of(name: str, source: str) -> list[re.Match]:
    """Returns the paragraphs of a page, or the comments and messages of a source file. Omits the messages in tests."""
    if name.endswith(PAGES):
        return list(re.finditer(r"[^|\n]+(?:\n[^|\n]+)*", FENCED.sub(blank, source)))
    strings = [] if name.startswith("tests/") else STRINGS.finditer(COMMENT.sub(blank, source))
    return [*COMMENT.finditer(source), *(text for text in strings if " " in text[0])]


exceptions = [line.split("\t") for line in pathlib.Path(__file__).with_name("prose_exceptions.txt").read_text().splitlines()]
git = subprocess.run(["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=False)
names = git.stdout.splitlines() or [str(path.relative_to(ROOT)) for path in ROOT.rglob("*")]
breaches = False
for name in sorted(name for name in names if name.endswith(PAGES + CODE) and not name.startswith(SKIPPED) and (ROOT / name).exists()):
    source = (ROOT / name).read_text()
    for match, phrase in ((match, phrase) for match in texts_of(name, source) for phrase in PHRASES):
        text = re.sub(r'//[/<]*|\n \* |"', blank, match[0])
        for found in re.finditer(phrase, text):
            around = " ".join(text[max(0, found.start() - 60):found.end() + 60].split())
            if not any(name == file and words in around for file, words, _ in exceptions):
                print(f"{name}:{source.count(chr(10), 0, match.start() + found.start()) + 1}: {PHRASES[phrase]}: {around}")
                breaches = True
sys.exit(breaches)
