"""Grammars that restrict answers: JSON schemas, GBNF, Lark, regular expressions and tool calls, by llguidance.

    compiler = GrammarCompiler(pieces, special, ends)              # starts to prepare the vocabulary
    matcher = compiler.compile("json_schema", schema).matcher()    # one matcher for each answer
    mask = matcher.mask()                                          # 1 bit for each allowed token
    matcher.accept(token)

Threads: a GrammarCompiler and a Grammar may be used from any thread, a Matcher from one thread at a time. compile() may
wait for the vocabulary. llguidance 1.9.1 releases the GIL while it compiles a grammar and computes a mask (measured:
other threads pause for 1 ms during a mask of 300 ms). It holds the GIL in Matcher.accept(), usually for microseconds.
It also holds the GIL while it prepares the vocabulary: 0.07 s for 32,000 tokens, 0.34 s for 150,000.
"""

import collections
import functools
import json
import threading
from collections.abc import Callable
from typing import Any

import llguidance
from llguidance.gbnf_to_lark import any_to_lark

LONGEST = 1 << 18  # characters of a schema or of a grammar for tools
LONGEST_TEXT = 1 << 15  # characters of other grammars; one rule of this length takes about 1 s for a mask
SPACE = r"[ \t\r\n]{1,64}"  # between JSON tokens; without a limit, small models may write white space for ever
KEPT = 64  # compiled grammars
KINDS = ("json_schema", "json_object", "gbnf", "lark", "regex", "tools")
# Compiling usually takes 1 ms, at most about 2 s (a schema with 3,000 properties). A mask usually takes 0.1 ms, at most
# about 1 s.
LIMITS = {
    "max_items_in_row": 4000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 30_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 25_000,
    "verbose_errors": False,
}


class GrammarError(ValueError):
    """The grammar is invalid, exceeds a limit, or cannot be satisfied. The message is one line."""


class _Vocabulary:
    """The tokens in the form that llguidance expects. `encode`: the model's tokenizer for plain text."""

    def __init__(
        self, tokens: list[bytes], ends: list[int], special: list[int], encode: Callable[[bytes], list[int]] | None
    ) -> None:
        self.tokens = tokens
        self.eos_token_id = ends[0]
        self.bos_token_id = None
        self.special_token_ids = special
        self._encode = encode
        self.greedy: Callable[[str], list[int]] | None = None

    def __call__(self, text: bytes) -> list[int]:
        """Tokens of a text that the grammar forces. Exceptions must not reach llguidance."""
        if self._encode is not None:
            try:
                ids = self._encode(text)
                if b"".join(self.tokens[token] for token in ids) == text:
                    return ids
            except Exception:  # pylint: disable=broad-exception-caught  # another division into tokens is also correct
                pass
        return self.greedy(text.decode(errors="replace")) if self.greedy is not None else []


class GrammarCompiler:
    """Compiles grammars for one vocabulary. A thread prepares the vocabulary; compile() waits for it.

    `pieces`: bytes of each token. `special`: whether the token is a control token, which text never matches. `ends`:
    tokens that end an answer. `encode`: divides a text into tokens as the model expects, for text that a grammar
    forces; without it, the longest tokens are taken."""

    def __init__(self, pieces: list[bytes], special: list[bool], ends: list[int],
                 encode: Callable[[bytes], list[int]] | None = None) -> None:
        if not ends:
            raise GrammarError("the vocabulary has no end token, so grammars cannot end; use a model with one")
        self.control = {pieces[token].decode(errors="replace"): token
                        for token in range(len(pieces)) if special[token] and pieces[token]}
        self._size = len(pieces)
        self._ends = list(ends)
        self._arguments = (pieces, special, ends, encode)
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._failure = ""
        self._lock = threading.Lock()
        self._kept: collections.OrderedDict[tuple[str, str], Grammar] = collections.OrderedDict()
        self._thread = threading.Thread(target=self._prepare, name="grammar vocabulary", daemon=True)
        self._thread.start()

    def _prepare(self) -> None:
        pieces, special, ends, encode = self._arguments
        hidden = sorted({token for token, is_special in enumerate(special) if is_special} | set(ends))
        tokens = list(pieces)
        for token in hidden:
            tokens[token] = b"\xff" + (pieces[token] or f"<token {token}>".encode())
        vocabulary = _Vocabulary(tokens, ends, hidden, encode)
        try:
            wrapper = llguidance.TokenizerWrapper(vocabulary)
            tokenizer = llguidance.LLTokenizer(wrapper, eos_token=self._ends)
            vocabulary.greedy = tokenizer.greedy_tokenize
            self._tokenizer = tokenizer
        except BaseException as error:  # pylint: disable=broad-exception-caught  # compile() reports it
            self._failure = _one_line(str(error))

    def compile(self, kind: str, value: Any) -> "Grammar":
        """Compiles a grammar. `kind`: json_schema (value: dict), json_object (no value), gbnf, lark, regex (str), or
        tools (the result of ToolFormat.grammar()). Raises GrammarError. Grammars are kept for later requests."""
        if kind not in KINDS:
            raise GrammarError(f"the grammar kind {kind!r} is unknown; use one of {', '.join(KINDS)}")
        text = _source(kind, value)
        self._thread.join()
        if self._tokenizer is None:
            raise GrammarError(f"llguidance refuses the vocabulary: {self._failure}")
        with self._lock:
            grammar = self._kept.get((kind, text))
            if grammar is not None:
                self._kept.move_to_end((kind, text))
                return grammar
        grammar = Grammar(self._tokenizer, _translated(kind, text), kind, self._size, self._ends)
        with self._lock:
            self._kept[kind, text] = grammar
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return grammar


def answer_schema(kind: str, value: Any) -> dict[str, Any]:
    """The schema of a JSON answer in a grammar for tools. `kind`: json_schema or json_object."""
    schema = {"type": "object"} if kind == "json_object" else value if isinstance(value, dict) else {"anyOf": [value]}
    return {**schema, "x-guidance": {"whitespace_pattern": SPACE}}


def _source(kind: str, value: Any) -> str:
    """The text of a grammar. Raises GrammarError if the value has the wrong type or is too long."""
    if kind == "json_object":
        value = {"type": "object"}
    if kind in ("json_schema", "json_object"):
        if not isinstance(value, (dict, bool)):
            raise GrammarError("the JSON schema is not an object")
        try:
            value = json.dumps(value)
        except (ValueError, TypeError, RecursionError) as error:
            raise GrammarError(f"the JSON schema is not JSON: {_one_line(str(error))}") from None
    if not isinstance(value, str):
        raise GrammarError(f"the {kind} grammar is not a string")
    longest = LONGEST_TEXT if kind in ("gbnf", "lark", "regex") else LONGEST
    if len(value) > longest:
        raise GrammarError(f"the {kind} grammar has {len(value)} characters; the limit is {longest}")
    return value


def _translated(kind: str, text: str) -> str:
    """The grammar in llguidance's form."""
    matcher = llguidance.LLMatcher
    try:
        if kind in ("json_schema", "json_object"):
            return matcher.grammar_from_json_schema(text, overrides={"whitespace_pattern": SPACE})
        if kind == "regex":
            return matcher.grammar_from_regex(text)
        return matcher.grammar_from_lark(any_to_lark(text) if kind == "gbnf" else text)
    except (
        Exception,
        RecursionError,
    ) as error:  # pylint: disable=broad-exception-caught  # gbnf_to_lark has own classes
        raise GrammarError(f"the {kind} grammar is invalid: {_one_line(str(error))}") from None


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else line[:297] + "..."


class Grammar:
    """A compiled grammar. It is immutable and makes any number of matchers."""

    def __init__(self, tokenizer: llguidance.LLTokenizer, text: str, kind: str, size: int, ends: list[int]) -> None:
        first = llguidance.LLMatcher(tokenizer, text, log_level=0, limits=llguidance.LLParserLimits(**LIMITS))
        if first.is_error():
            raise GrammarError(f"the {kind} grammar is invalid: {_one_line(first.get_error())}")
        self._first = Matcher(first, kind, size, ends)
        self._first.mask()  # the matchers of all answers start with this mask
        self._lock = threading.Lock()

    def matcher(self) -> "Matcher":
        """A matcher at the start of an answer."""
        with self._lock:
            return self._first.copy()


@functools.lru_cache(maxsize=8)
def _end_mask(size: int, ends: tuple[int, ...]) -> bytes:
    """A mask that allows only the end tokens."""
    bits = bytearray((size + 31) // 32 * 4)
    for token in ends:
        bits[token >> 3] |= 1 << (token & 7)
    return bytes(bits)


class Matcher:
    """The state of one answer in a grammar."""

    def __init__(self, matcher: llguidance.LLMatcher, kind: str, size: int, ends: list[int]) -> None:
        self._matcher, self._kind = matcher, kind
        self._size, self._ends = size, ends
        self._end_mask = _end_mask(size, tuple(ends))
        self._mask: bytes | None = None  # of the next token, if it is known

    def copy(self) -> "Matcher":
        copy = Matcher(self._matcher.deep_copy(), self._kind, self._size, self._ends)
        copy._mask = self._mask
        return copy

    @property
    def done(self) -> bool:
        """Whether the answer is complete and cannot continue; only end tokens are allowed."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def mask(self) -> bytes:
        """Allowed tokens as little-endian uint32 words, (vocabulary + 31) // 32 of them: token t is bit t % 32 of word
        t // 32. Raises GrammarError if no token is possible or a limit is exceeded."""
        if self._mask is None:
            self._mask = self._new_mask()
        return self._mask

    def _new_mask(self) -> bytes:
        if self.done:
            return self._end_mask
        mask = self._matcher.compute_bitmask()[:len(self._end_mask)]  # llguidance may add a word
        self._check("cannot continue")
        if self.done:
            return self._end_mask
        if not any(mask):
            raise GrammarError(f"the {self._kind} grammar allows no token here; it cannot be satisfied")
        return mask

    def accept(self, token: int) -> None:
        """Continues the answer with a token. Raises GrammarError if the grammar does not allow it."""
        self._mask = None
        if self.done and token in self._ends:
            return
        if self.done or not self._matcher.consume_token(token):
            self._check("does not allow this token")
            raise GrammarError(f"the {self._kind} grammar does not allow token {token} here")

    def _check(self, what: str) -> None:
        if self._matcher.is_error():
            raise GrammarError(f"the {self._kind} grammar {what}: {_one_line(self._matcher.get_error())}")
