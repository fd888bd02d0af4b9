"""Tests of shoal.chat.grammar and of the grammars for tool calls. Completions are sampled at random under the masks."""
import json
import pathlib
import random
import re
import threading
import time

import pytest
from shoal.chat.grammar import Grammar, GrammarCompiler, GrammarError, answer_schema
from shoal.chat.templates import Renderer
from shoal.chat.tool_calls import CallArguments, CallBegin, Content, ToolFormat, detect, generic_format

ROOT = pathlib.Path(__file__).resolve().parents[2]
PUBLISHED = sorted((ROOT / "build/vocabularies/templates").glob("*.jinja"))
WORDS = [
    "the",
    " and",
    "king",
    " of",
    '{"',
    '": ',
    '", "',
    '"}',
    "true",
    "false",
    "null",
    "12",
    "</",
    "<tool_call>",
    "é",
    "日本",
]
END = "</s>"


def compiler_with(controls=(), words=WORDS, **more):
    """A compiler for all bytes, some words, control tokens and the end token."""
    pieces = [bytes([i]) for i in range(256)] + [word.encode() for word in words if word not in controls]
    special = [False] * len(pieces) + [True] * (len(controls) + 1)
    pieces += [control.encode() for control in (*controls, END)]
    return GrammarCompiler(pieces, special, [len(pieces) - 1], **more), pieces


@pytest.fixture(name="plain", scope="module")
def _plain():
    return compiler_with()


def allowed(mask, size):
    assert len(mask) == (size + 31) // 32 * 4
    words = [int.from_bytes(mask[place:place + 4], "little") for place in range(0, len(mask), 4)]
    assert all(not words[token // 32] >> token % 32 & 1 for token in range(size, len(words) * 32))
    return [token for token in range(size) if words[token // 32] >> token % 32 & 1]


def sample(grammar, pieces, rng, longest=600, rare=()):
    """A random completion as tokens, or None if it is too long. Signs that end strings and lists are preferred. `rare`:
    texts of tokens that are taken only if no other token is allowed."""
    matcher, tokens = grammar.matcher(), []
    while len(tokens) < longest:
        choices = allowed(matcher.mask(), len(pieces))
        assert choices
        end = len(pieces) - 1
        if end in choices and (matcher.done or len(choices) == 1 or rng.random() < 0.5):
            matcher.accept(end)
            return tokens
        usual = [
            token for token in choices if token != end and pieces[token].decode(errors="replace") not in rare
        ] or choices
        good = [
            token for token in usual if len(pieces[token]) > 1 or 32 <= pieces[token][0] < 127 or pieces[token] == b"\n"
        ] or usual
        closing = [token for token in good if pieces[token][-1:] in b"\"}]<>)'|\n" or len(pieces[token]) > 4]
        token = rng.choice(closing if closing and rng.random() < min(0.9, 0.3 + len(tokens) / 100) else good)
        matcher.accept(token)
        if token == end:
            return tokens
        tokens.append(token)
    return None


def text_of(tokens, pieces):
    return b"".join(pieces[token] for token in tokens).decode(errors="replace")


def random_schema(rng, depth=0):
    kind = rng.choice(
        ["string", "integer", "number", "boolean", "null", "enum", "const"] + ["object", "array", "anyOf"] * (depth < 3)
    )
    if kind == "enum":
        return {"enum": rng.sample(["red", "a b", "\"", 3, None, True, "é\n"], rng.randrange(1, 4))}
    if kind == "const":
        return {"const": rng.choice(["x", 7, False])}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth + 1) for _ in range(rng.randrange(1, 4))]}
    if kind == "array":
        return {"type": "array", "items": random_schema(rng, depth + 1), "minItems": rng.randrange(3), "maxItems": 3}
    if kind == "object":
        names = rng.sample(["a", "b c", "ü", "d\"", "e"], rng.randrange(4))
        return {"type": "object", "properties": {name: random_schema(rng, depth + 1) for name in names},
                "required": [name for name in names if rng.random() < 0.5], "additionalProperties": False}
    if kind == "string":
        return {"type": "string", "maxLength": rng.choice([0, 3, 20])}
    return {"type": kind, "minimum": 5} if kind == "integer" and rng.random() < 0.5 else {"type": kind}


def is_valid(value, schema):
    """Validates the keywords that random_schema() and the tools of these tests use."""
    if "anyOf" in schema:
        return any(is_valid(value, part) for part in schema["anyOf"])
    if "enum" in schema:
        return any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in schema["enum"])
    if "const" in schema:
        return value == schema["const"] and isinstance(value, bool) == isinstance(schema["const"], bool)
    kind = schema["type"]
    if kind == "object":
        properties = schema.get("properties", {})
        return (isinstance(value, dict) and set(schema.get("required", [])) <= set(value) <= set(properties)
                and all(is_valid(item, properties[name]) for name, item in value.items()))
    if kind == "array":
        return (isinstance(value, list) and schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 99)
                and all(is_valid(item, schema["items"]) for item in value))
    if kind == "string":
        return isinstance(value, str) and len(value) <= schema.get("maxLength", 1e9)
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    whole = isinstance(value, int) or isinstance(value, float) and value.is_integer()
    return not isinstance(value, bool) and isinstance(value, (int, float)) and (kind == "number" or whole) \
        and value >= schema.get("minimum", -1e999)


def test_completions_of_random_schemas_are_valid(plain):
    compiler, pieces = plain
    rng, complete = random.Random(3), 0
    for _ in range(150):
        schema = random_schema(rng)
        grammar = compiler.compile("json_schema", schema)
        for _ in range(2):
            tokens = sample(grammar, pieces, rng)
            if tokens is not None:
                assert is_valid(json.loads(text_of(tokens, pieces)), schema), (schema, text_of(tokens, pieces))
                complete += 1
    assert complete > 250


def test_any_object_is_an_object(plain):
    compiler, pieces = plain
    rng = random.Random(4)
    texts = [
        text_of(tokens, pieces)
        for _ in range(20)
        if (tokens := sample(compiler.compile("json_object", None), pieces, rng))
    ]
    assert len(texts) > 5 and all(isinstance(json.loads(text), dict) for text in texts)


@pytest.mark.parametrize(
    "kind, value, pattern",
    [
        ("regex", "[a-c]{3}(x|yy)", "[a-c]{3}(x|yy)"),
        ("gbnf", 'root ::= "a" digit+ ("b" | "c")?\ndigit ::= [0-9]', "a[0-9]+[bc]?"),
        ("lark", 'start: "<" WORD ">"\nWORD: /[a-z]{1,5}/', "<[a-z]{1,5}>"),
    ],
)
def test_other_grammars_restrict_the_text(plain, kind, value, pattern):
    compiler, pieces = plain
    rng = random.Random(5)
    for _ in range(20):
        assert re.fullmatch(pattern, text_of(sample(compiler.compile(kind, value), pieces, rng), pieces))


def test_only_end_tokens_follow_a_finished_grammar(plain):
    compiler, pieces = plain
    matcher = compiler.compile("regex", "ab").matcher()
    assert not matcher.done
    for token in b"ab":
        matcher.accept(token)
    assert matcher.done and allowed(matcher.mask(), len(pieces)) == [len(pieces) - 1]
    matcher.accept(len(pieces) - 1)
    matcher.accept(len(pieces) - 1)
    with pytest.raises(GrammarError, match="does not allow token 97"):
        matcher.accept(97)


def test_a_forbidden_token_is_an_error_and_matchers_are_independent(plain):
    compiler, _ = plain
    grammar = compiler.compile("regex", "ab")
    first, second = grammar.matcher(), grammar.matcher()
    with pytest.raises(GrammarError, match="regex grammar does not allow"):
        first.accept(ord("b"))
    second.accept(ord("a"))
    assert not second.done and grammar.matcher().mask() != second.mask()


def test_control_tokens_never_match_text():
    compiler, pieces = compiler_with(["<|im_end|>", "<tool_call>", "plain"])
    special = set(compiler.control.values())
    assert set(compiler.control) == {"<|im_end|>", "<tool_call>", "plain", END}
    for kind, value in (("regex", "(?s:.*)"), ("json_object", None), ("regex", "<tool_call>|plain")):
        matcher = compiler.compile(kind, value).matcher()
        assert set(allowed(matcher.mask(), len(pieces))) & special <= {len(pieces) - 1}
    matcher = compiler.compile("lark", f"start: <[{compiler.control['<tool_call>']}]> \"x\"").matcher()
    assert allowed(matcher.mask(), len(pieces)) == [compiler.control["<tool_call>"]]


def test_forced_text_uses_the_tokens_of_the_model():
    words = ["hel", "hello", "lo"]
    for encode, expected in (
        (None, "hello"),
        (lambda text: [words_at("hel"), words_at("lo")] if text == b"hello" else list(text), "hel"),
        (lambda text: [0], "hello"),
        (lambda text: 1 // 0, "hello"),
    ):
        compiler, pieces = compiler_with(words=words, encode=encode)

        def words_at(word, pieces=pieces):
            return pieces.index(word.encode())
        choices = allowed(compiler.compile("lark", 'start: "hello"').matcher().mask(), len(pieces))
        assert [pieces[token] for token in choices] == [expected.encode()]


def test_white_space_between_json_tokens_is_limited(plain):
    compiler, _ = plain
    matcher = compiler.compile("json_object", None).matcher()
    matcher.accept(ord("{"))
    with pytest.raises(GrammarError):
        for _ in range(200):
            matcher.accept(ord(" "))


@pytest.mark.parametrize(
    "kind, value",
    [
        ("lark", "start: ["),
        ("gbnf", "root ::= (("),
        ("gbnf", "root ::= missing"),
        ("regex", "(a"),
        ("json_schema", {"type": "nonsense"}),
        ("json_schema", "text"),
        ("json_schema", {"x": object()}),
        ("json_schema", {"type": "object", "properties": {"a": False}, "required": ["a"]}),
        ("regex", 3),
        ("lark", "x" * 300_000),
        ("yaml", "a"),
        ("lark", "start: <[99999]>"),
        ("gbnf", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000),
        ("json_schema", {"allOf": [{"type": "string", "pattern": f"(.*{c}){{5}}"} for c in "abcdefghij"]}),
    ],
)
def test_invalid_grammars_are_one_line(plain, kind, value):
    with pytest.raises(GrammarError) as caught:
        plain[0].compile(kind, value).matcher().mask()
    assert (
        "\n" not in str(caught.value)
        and kind in str(caught.value).replace("JSON schema", "json_schema")
        and len(str(caught.value)) < 500
    )


def test_an_unsatisfiable_state_is_an_error(plain):
    schema = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}
    with pytest.raises(GrammarError):
        plain[0].compile("json_schema", schema).matcher().mask()


@pytest.mark.parametrize(
    "kind, value",
    [
        ("lark", "start: " + "x " * 16_000 + '\nx: "a"?\n'),
        ("lark", 'start: (("a"?){1000}){1000}\n'),
        ("regex", "(a{1,1000}){1,1000}"),
        ("lark", "start: A\nA: /(.*a){50}/ & ~/(.*b){50}/ & /(.*c){50}/\n"),
        ("gbnf", 'root ::= root root | "a" | ""'),
        ("json_schema", {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(3000)}}),
        ("json_schema", {"enum": ["x" * 50 + str(i) for i in range(3000)]}),
    ],
)
def test_grammar_bombs_end_within_the_limits(plain, kind, value):
    compiler, pieces = plain
    start, rng = time.process_time(), random.Random(6)
    try:
        matcher = compiler.compile(kind, value).matcher()
        for _ in range(20):
            token = rng.choice(allowed(matcher.mask(), len(pieces)))
            matcher.accept(token)
            if token == len(pieces) - 1:
                break
    except GrammarError as error:
        assert "\n" not in str(error)
    assert time.process_time() - start < 30


def test_grammars_are_kept_and_shared_by_threads(plain):
    compiler, pieces = plain
    schema = {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}
    grammar = compiler.compile("json_schema", schema)
    assert compiler.compile("json_schema", dict(schema)) is grammar and isinstance(grammar, Grammar)
    answers, threads = [], []

    def run(seed):
        answers.append(
            json.loads(text_of(sample(compiler.compile("json_schema", schema), pieces, random.Random(seed)), pieces))
        )
    for seed in range(8):
        threads.append(threading.Thread(target=run, args=(seed,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8 and all(is_valid(answer, schema) for answer in answers)


def test_a_vocabulary_without_end_is_refused():
    with pytest.raises(GrammarError, match="no end token"):
        GrammarCompiler([b"a"], [False], [])


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "required": ["city", "days"],
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "exact": {"type": "boolean"},
                    "unit": {"enum": ["metric", "imperial"]},
                    "limits": {"type": "array", "items": {"type": "number"}, "maxItems": 2},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "stop-all", "parameters": {"type": "object", "properties": {}}}},
]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
QWEN_CODER = ToolFormat(
    "parameters",
    ("<tool_call>\n<function=", "\0name", ">\n", "\0arguments", "\n</function>\n</tool_call>"),
    triggers=("<function=",),
    dropped=("<tool_call>", "</tool_call>", "</function>"),
    call_end="</function>",
    name_head=">\n",
    parameter_begin="<parameter=",
    parameter_gap="\n",
    key_head=">",
    value_pad="\n",
    value_end="</parameter>",
)


def formats():
    """The formats in this file and of the published templates, without duplicates."""
    found = {"generic": generic_format(), "xml": QWEN_CODER}
    for path in PUBLISHED:
        with Renderer(path.read_text(), {"bos_token": "<s>", "eos_token": "</s>"}, path.name) as renderer:
            tool_format = detect(renderer)
        if tool_format is not None and tool_format not in found.values():
            found[path.stem] = tool_format
    return found


@pytest.fixture(name="all_formats", scope="module")
def _all_formats():
    return formats()


def read(tool_format, text):
    """The calls and the content of an answer."""
    parser = tool_format.parser(TOOLS)
    events = [event for character in text for event in parser.push(character)] + parser.finish()
    calls = [[event.name, ""] for event in events if isinstance(event, CallBegin)]
    for event in events:
        if isinstance(event, CallArguments):
            calls[event.index][1] += event.fragment
    return calls, "".join(event.text for event in events if isinstance(event, Content)), parser.broken


def literals(tool_format, are_control=False):
    """Texts of a format as tokens, so that random completions finish."""
    ends = [] if are_control else [tool_format.value_pad + tool_format.value_end, "<|end|>"]
    return [text for text in (*ends, "commentary", "metric", "imperial", "get_weather", "stop-all") if text.strip()]


@pytest.mark.parametrize("are_control", [False, True])
def test_forced_calls_are_read_back(all_formats, are_control):
    for name, tool_format in all_formats.items():
        rng, counts = random.Random(8), []
        controls = tool_format.marks if are_control else []
        compiler, pieces = compiler_with(controls, [*WORDS, *literals(tool_format, are_control), *tool_format.marks])
        control = compiler.control if are_control else {}
        grammar = compiler.compile("tools", tool_format.grammar(TOOLS, "required", True, control=control))
        for _ in range(30):
            tokens = sample(
                grammar, pieces, rng, rare={*tool_format.marks, "<tool_call>"} - {*controls, *literals(tool_format)}
            )
            if tokens is None:
                continue
            text = text_of(tokens, pieces)
            calls, content, broken = read(tool_format, text)
            assert calls and not broken, (name, text)
            assert not content.strip() or tool_format.before_reasoning or name == "Kimi-K3", (name, text)
            for call, arguments in calls:
                assert is_valid(json.loads(arguments), SCHEMAS[call]), (name, text, arguments)
            counts.append(len(calls))
            if len(counts) == 5:
                break
        assert len(counts) == 5, name


def test_choice_and_number_of_calls(all_formats):
    for name, tool_format in all_formats.items():
        compiler, pieces = compiler_with([], [*WORDS, *literals(tool_format), *tool_format.marks])
        rng = random.Random(9)
        named = compiler.compile("tools", tool_format.grammar(TOOLS, "stop-all"))
        single = compiler.compile("tools", tool_format.grammar(TOOLS, "required", False))
        for grammar, names in ((named, {"stop-all"}), (single, {"stop-all", "get_weather"})):
            texts = [text_of(tokens, pieces) for _ in range(4) if (tokens := sample(grammar, pieces, rng)) is not None]
            assert texts, name
            for text in texts:
                calls = read(tool_format, text)[0]
                assert len(calls) == 1 and calls[0][0] in names, (name, text)
    with pytest.raises(ValueError, match='tool_choice names "missing", which is not in tools'):
        generic_format().grammar(TOOLS, "missing")
    with pytest.raises(ValueError, match="tools is empty"):
        generic_format().grammar([], "required")


@pytest.mark.parametrize("are_control", [False, True])
def test_auto_allows_text_and_completes_calls(all_formats, are_control):
    for name, tool_format in all_formats.items():
        controls = tool_format.marks if are_control else []
        compiler, pieces = compiler_with(controls, [*WORDS, *literals(tool_format, are_control), *tool_format.marks])
        control = compiler.control if are_control else {}
        grammar = compiler.compile("tools", tool_format.grammar(TOOLS, "auto", True, control=control))
        if not tool_format.before_reasoning:
            matcher = grammar.matcher()
            for character in b"No call.":
                matcher.accept(character)
            assert len(pieces) - 1 in allowed(matcher.mask(), len(pieces)), name
        forced = compiler.compile("tools", tool_format.grammar(TOOLS, "required", False, control=control))
        rng = random.Random(10)
        tokens = next(tokens for _ in range(20) if (tokens := sample(forced, pieces, rng)) is not None)
        matcher = grammar.matcher()
        for token in tokens:  # each forced answer is also possible
            matcher.accept(token)
        assert len(pieces) - 1 in allowed(matcher.mask(), len(pieces)), (name, text_of(tokens, pieces))


def test_auto_forces_the_rest_of_a_call():
    compiler, pieces = compiler_with()
    matcher = compiler.compile("tools", generic_format().grammar(TOOLS, "auto")).matcher()
    for character in 'Yes.\n<tool_call>\n{"name": "'.encode():
        matcher.accept(character)
    assert {pieces[token][:1] for token in allowed(matcher.mask(), len(pieces))} == {b"g", b"s"}


def test_a_thought_may_come_first():
    for controls in ([], ["</think>"]):
        compiler, pieces = compiler_with(controls, [*WORDS, "</think>"])
        text = generic_format().grammar(TOOLS, "stop-all", control=compiler.control, thought_end="</think>")
        matcher = compiler.compile("tools", text).matcher()
        for token in [*b"Hm {", pieces.index(b"</think>"), ord("\n")]:
            matcher.accept(token)
        assert {pieces[token][:1] for token in allowed(matcher.mask(), len(pieces))} <= {b"<", b"\n", b" "}


@pytest.mark.parametrize("are_control", [False, True])
def test_schema_allows_calls_and_the_schema_only(all_formats, are_control):
    schema = {"type": "object", "properties": {"age": {"enum": [7, 8]}}, "required": ["age"]}
    for name, tool_format in all_formats.items():
        if tool_format.is_bare:
            continue
        controls = tool_format.marks if are_control else []
        compiler, pieces = compiler_with(controls, [*WORDS, *literals(tool_format, are_control), *tool_format.marks])
        control, end = compiler.control if are_control else {}, len(pieces) - 1
        options = {"control": control, "schema": answer_schema("json_schema", schema)}
        grammar = compiler.compile("tools", tool_format.grammar(TOOLS, "auto", False, **options))
        after = compiler.compile("tools", tool_format.grammar(TOOLS, "auto", False, thought_end="</think>", **options))
        forced = compiler.compile("tools", tool_format.grammar(TOOLS, "required", False, control=control))
        rng = random.Random(12)
        call = next(tokens for _ in range(20) if (tokens := sample(forced, pieces, rng)) is not None)
        final = "<|channel|>final<|message|>" if tool_format.before_reasoning else ""
        parts = re.split(r"(<\|\w+\|>)", final)
        head = [token for part in parts for token in ([control[part]] if part in control else part.encode())]
        answer = [*head, *b'{ "age" :\t\r\n7 }']
        for tokens in (call, answer):
            for start, thought in ((grammar, b""), (after, b"Hm { <tool></think>\n\n")):
                matcher = start.matcher()
                for token in [*thought, *tokens]:
                    matcher.accept(token)
                assert end in allowed(matcher.mask(), len(pieces)), (name, text_of(tokens, pieces))
        assert read(tool_format, '{"age": 7}') == ([], '{"age": 7}', [])
        first = {pieces[token][:1] for token in allowed(grammar.matcher().mask(), len(pieces))}
        assert first <= {pieces[tokens[0]][:1] for tokens in (call, answer)}, (name, first)
        with pytest.raises(GrammarError):
            for token in [*head, *b'{"age": 9']:
                matcher.accept(token)


def test_definitions_of_a_schema_stay_reachable(all_formats):
    tool = {
        "name": "f",
        "parameters": {
            "type": "object",
            "required": ["a"],
            "properties": {"a": {"$ref": "#/$defs/x"}},
            "$defs": {
                "x": {
                    "type": "object",
                    "properties": {"n": {"type": "integer"}},
                    "required": ["n"],
                    "additionalProperties": False,
                }
            },
        },
    }
    for name, tool_format in all_formats.items():
        compiler, pieces = compiler_with([], [*WORDS, *literals(tool_format), *tool_format.marks])
        grammar = compiler.compile("tools", tool_format.grammar([tool], "f"))
        rng = random.Random(11)
        tokens = next(tokens for _ in range(20) if (tokens := sample(grammar, pieces, rng)) is not None)
        parser = tool_format.parser([tool])
        events = parser.push(text_of(tokens, pieces)) + parser.finish()
        value = json.loads("".join(event.fragment for event in events if isinstance(event, CallArguments)))
        assert list(value) == ["a"] and isinstance(value["a"]["n"], (int, float)), name
