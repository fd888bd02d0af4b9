"""Tests of shoal.chat.tool_calls: round trips through templates, damaged answers, and streaming.

The templates of published models in build/vocabularies/templates are used if scripts/reference/vocabularies.py has
written them. FAMILIES has a small template for each form, so the tests cover all forms without these files."""
import functools
import json
import pathlib
import random
import re

import pytest
from shoal.chat.templates import Renderer
from shoal.chat.tool_probe import answer_text
from shoal.chat.tool_calls import CallArguments, CallBegin, Content, detect, generic_format

ROOT = pathlib.Path(__file__).resolve().parents[2]
PUBLISHED = {path.stem: path.read_text() for path in sorted((ROOT / "build/vocabularies/templates").glob("*.jinja"))}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
# Published templates that know no tools, or whose form is unknown.
UNKNOWN = {"HuggingFaceTB-SmolLM3-3B", "MiniMax-M3", "fireworks-ai-llama-3-firefunction-v2", "google-gemma-2-2b-it",
           "llama-cpp-deepseek-r1", "llama-cpp-rwkv-world", "meetkai-functionary-medium-v3.2",
           "microsoft-Phi-3.5-mini-instruct", "muse-glimmer", "upstage-Solar-Open-100B"}
# These templates write other sections or headers before calls.
OTHER_MARKS = {"Kimi-K3", "CohereForAI-c4ai-command-r-plus-tool_use"}
# Published templates that list tools but never show a call.
WITHOUT_CALLS = {"LFM2-8B-A1B", "LFM2.5-Instruct", "ibm-granite-granite-3.3-2B-Instruct"}

HEAD = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content }}{% for c in m.tool_calls or [] %}{% set f = c.function %}"
)
TAIL = "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
LOOP = "{% for k, v in f.arguments.items() %}"
TEXT = "{{ v if v is string else v | tojson }}"
FAMILIES = {
    "json": HEAD
    + '\n<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n</tool_call>'
    + TAIL,
    "json list": HEAD.replace("{% for c in", "{% if m.tool_calls %}[TOOL_CALLS][{% endif %}{% for c in")
    + '{{ ", " if not loop.first }}{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}, '
    + '"id": "{{ c.id }}"}'
    + TAIL.replace("{% endfor %}<|im", "{% endfor %}{{ ']' if m.tool_calls }}<|im"),
    "bare json": HEAD + '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}{% break %}' + TAIL,
    "named": HEAD + "[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ c.id }}[ARGS]{{ f.arguments | tojson }}" + TAIL,
    "kimi": HEAD + "<|tool_call_begin|>functions.{{ f.name }}:{{ loop.index0 }}<|tool_call_argument_begin|>"
    "{{ f.arguments | tojson }}<|tool_call_end|>" + TAIL,
    "xml": HEAD
    + "\n<tool_call>\n<function={{ f.name }}>\n"
    + LOOP
    + "<parameter={{ k }}>\n"
    + TEXT
    + "\n</parameter>\n{% endfor %}</function>\n</tool_call>"
    + TAIL,
    "keys": HEAD
    + "<tool_call>{{ f.name }}\n"
    + LOOP
    + "<arg_key>{{ k }}</arg_key>\n<arg_value>"
    + TEXT
    + "</arg_value>\n{% endfor %}</tool_call>"
    + TAIL,
    "typed": HEAD.replace("{% for c in", "{% if m.tool_calls %}<calls>\n{% endif %}{% for c in")
    + '<invoke name="{{ f.name }}">\n'
    + LOOP
    + '<parameter name="{{ k }}" string="{{ "true" if v is string else "false" }}">'
    + TEXT
    + "</parameter>\n{% endfor %}</invoke>\n"
    + TAIL.replace("{% endfor %}<|im", "{% endfor %}{{ '</calls>' if m.tool_calls }}<|im"),
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tells the weather.",
            "parameters": {
                "type": "object",
                "additionalProperties": False,
                "required": ["city", "days"],
                "properties": {
                    "city": {"type": "string", "description": "A city."},
                    "days": {"type": "integer", "description": "Days."},
                    "exact": {"type": "boolean", "description": "Exact."},
                    "limits": {"type": "array", "description": "Limits.", "items": {"type": "number"}},
                    "more": {
                        "type": "object",
                        "description": "More.",
                        "additionalProperties": {"type": "string"},
                        "properties": {"unit": {"type": "string", "description": "A unit."}},
                    },
                },
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "write-file2",
            "description": "Writes a file.",
            "parameters": {
                "type": "object",
                "additionalProperties": False,
                "required": ["path"],
                "properties": {
                    "path": {"type": "string", "description": "A path."},
                    "text": {"type": "string", "description": "A text."},
                },
            },
        },
    },
]
CALLS = [("get_weather", {"city": "Zürich \"q\" \\ 東京", "days": 3, "exact": True, "limits": [1, -2.5, 0],
                          "more": {"unit": "°C", "none": None}}),
         ("write-file2", {"path": "true", "text": "if a < b:\n    print('</x>', \"[1]\")\n\n  end"})]
EVENTS = (Content, CallBegin, CallArguments)


@functools.cache
def found(name):
    """The renderer and the format of a template."""
    renderer = Renderer(FAMILIES.get(name) or PUBLISHED[name], TOKENS, name)
    return renderer, detect(renderer)


def known():
    return [*FAMILIES, *(name for name in PUBLISHED if name not in UNKNOWN)]


def said(calls, content=""):
    return {"role": "assistant", "content": content, "tool_calls": [
        {"id": f"abcdef12{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(calls)]}


def rendered(name, calls):
    """The text of an answer with calls, rendered by the template, and the calls in it."""
    renderer, tool_format = found(name)
    calls = calls[:1] if tool_format.one_call else calls
    if tool_format.form == "pythonic":  # this template does not escape strings
        calls = [
            (
                name,
                {
                    key: re.sub(r"[\"'\\\n]", "", value) if isinstance(value, str) else value
                    for key, value in arguments.items()
                },
            )
            for name, arguments in calls
        ]
    text = answer_text(renderer, tool_format.prepared([said(calls)])[0], TOOLS)
    assert text is not None
    return text, calls


def parsed(tool_format, pieces, tools=TOOLS):
    parser = tool_format.parser(tools)
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    assert all(isinstance(event, EVENTS) for event in events)
    return parser, events


def calls_of(events):
    """The calls as (name, text of the arguments), with a check of the indexes."""
    calls = []
    for event in events:
        if isinstance(event, CallBegin):
            assert event.index == len(calls)
            calls.append([event.name, ""])
        elif isinstance(event, CallArguments):
            assert event.index == len(calls) - 1 and event.fragment
            calls[-1][1] += event.fragment
    return [tuple(call) for call in calls]


def content_of(events):
    return "".join(event.text for event in events if isinstance(event, Content))


def cut(text, rng):
    """Divides a text into random pieces."""
    place, pieces = 0, []
    while place < len(text):
        size = rng.choice([1, 1, 2, 3, 7, 20, 90])
        pieces.append(text[place:place + size])
        place += size
    return pieces


@pytest.mark.parametrize("name", [*FAMILIES, *PUBLISHED])
def test_format_is_found(name):
    _, tool_format = found(name)
    assert (tool_format is None) == (name in UNKNOWN)


@pytest.mark.parametrize("name", [name for name in known() if name not in WITHOUT_CALLS])
def test_rendered_calls_are_parsed(name):
    tool_format = found(name)[1]
    text, expected = rendered(name, CALLS)
    rng = random.Random(1)
    for pieces in ([text], list(text), *(cut(text, rng) for _ in range(20))):
        parser, events = parsed(tool_format, pieces)
        assert [(call, json.loads(arguments)) for call, arguments in calls_of(events)] == expected, text
        assert not parser.broken
        assert content_of(events).strip() == "" or name in OTHER_MARKS, text


@pytest.mark.parametrize("name", [name for name in known() if name not in WITHOUT_CALLS])
def test_calls_without_arguments_are_parsed(name):
    tool_format = found(name)[1]
    text, expected = rendered(name, [("write-file2", {}), ("get_weather", {})])
    for pieces in ([text], list(text)):
        _, events = parsed(tool_format, pieces)
        # Some templates list parameters by a check for emptiness and print no arguments then.
        assert [(call, json.loads(arguments)) for call, arguments in calls_of(events)] == expected, text


FIXED = {
    "harmony": (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        '<|constrain|>json<|message|>{"city": "Rome", "days": 1}<|call|>',
        "<|channel|>analysis<|message|>Hm.<|end|>",
    ),
    "harmony header": (' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Rome", "days": 1}', ""),
    "gemma": ('Yes.<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:1}<tool_call|>', "Yes."),
    "lfm2": ("Yes. <|tool_call_start|>[get_weather(city='Rome', days=1)]<|tool_call_end|> Done.", "Yes.Done."),
    "granite": ('<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Rome", "days": 1}}]', ""),
    "deepseek": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"city": "Rome", "days": 1}\n'
        "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
    ),
}
TELLTALES = {
    "harmony": "<|channel|><|message|><|call|>",
    "gemma": "<|tool_call>call:<tool_call|>",
    "lfm2": "<|tool_list_start|>",
    "granite": "{% set available_tools = tools %}<|tool_call|>",
    "deepseek": "<｜tool▁calls▁begin｜>```json",
}


@pytest.mark.parametrize("name", FIXED)
def test_families_of_the_table_are_parsed(name):
    listing = (
        "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    with Renderer(TELLTALES[name.split()[0]] + listing, {}, name) as renderer:
        tool_format = detect(renderer)
    text, content = FIXED[name]
    for pieces in ([text], list(text)):
        parser, events = parsed(tool_format, pieces)
        assert [(call, json.loads(arguments)) for call, arguments in calls_of(events)] == [
            ("get_weather", {"city": "Rome", "days": 1})
        ]
        assert content_of(events) == content and not parser.broken


def test_ids_have_the_form_of_the_family():
    for name, pattern in (("json", "call_[A-Za-z0-9]{24}"), ("named", "abcdef12[01]"), ("json list", "[A-Za-z0-9]{9}"),
                          ("kimi", r"functions\.(get_weather:0|write-file2:1)")):
        _, events = parsed(found(name)[1], [rendered(name, CALLS)[0]])
        ids = [event.id for event in events if isinstance(event, CallBegin)]
        assert len(set(ids)) == 2 and all(re.fullmatch(pattern, identifier) for identifier in ids), ids


@pytest.mark.parametrize("name", [name for name in known() if name not in WITHOUT_CALLS])
def test_cut_calls_are_broken(name):
    """Cuts in the name, between name and arguments, and in the arguments. No call that the model has not ended counts."""
    text, calls = rendered(name, CALLS[:1])
    whole = len(calls[0][1])
    for length in range(1, len(text)):
        parser = found(name)[1].parser(TOOLS)
        events = parser.push(text[:length]) + parser.finish(is_cut=True)
        arguments = "".join(event.fragment for event in events if isinstance(event, CallArguments))
        if len(parser.broken) < sum(isinstance(event, CallBegin) for event in events):
            assert [event.name for event in events if isinstance(event, CallBegin)] == ["get_weather"], text[:length]
            assert len(json.loads(arguments)) == whole, text[:length]


@pytest.mark.parametrize("name", [name for name in known() if name not in WITHOUT_CALLS])
def test_names_with_colons_are_read(name):
    text, _ = rendered(name, [("mcp:a.b/c-d:read", {"path": "x"})])
    tool = {"type": "function", "function": {**TOOLS[1]["function"], "name": "mcp:a.b/c-d:read"}}
    for pieces in ([text], text):
        _, events = parsed(found(name)[1], pieces, [tool])
        assert [event.name for event in events if isinstance(event, CallBegin)] == ["mcp:a.b/c-d:read"], text


def test_arguments_are_streamed():
    for name in ("json", "named", "xml", "typed", "keys"):
        text, _ = rendered(name, [("write-file2", {"path": "a", "text": "word " * 50})])
        parser, early = found(name)[1].parser(TOOLS), 0
        for character in text:
            early += sum(isinstance(event, CallArguments) for event in parser.push(character))
            if character == "w" and early > 20:
                break
        assert early > 20, name


def test_values_get_the_types_of_the_schema():
    properties = {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "flag": {"type": "boolean"},
        "maybe": {"type": ["string", "null"]},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "items": {"type": "array"},
        "kind": {"enum": ["1", "2"]},
        "free": {},
        "float": {"type": ["number", "string"]},
    }
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": properties}}}
    ]
    values = [
        ("text", "12", "12"),
        ("text", " [1]", " [1]"),
        ("text", "", ""),
        ("count", "12", 12),
        ("count", "many", "many"),
        ("flag", "True", True),
        ("flag", "false", False),
        ("maybe", "null", None),
        ("maybe", "12", "12"),
        ("either", "12", 12),
        ("either", "x", "x"),
        ("items", "['a', None]", ["a", None]),
        ("items", '["a", null]', ["a", None]),
        ("kind", "1", "1"),
        ("free", "12", 12),
        ("free", "word", "word"),
        ("float", "1", 1),
        ("items", "NaN", "NaN"),
        ("count", "", ""),
    ]
    for key, text, expected in values:
        answer = f"<tool_call>\n<function=f>\n<parameter={key}>\n{text}\n</parameter>\n</function>\n</tool_call>"
        for pieces in ([answer], list(answer)):
            _, events = parsed(found("xml")[1], pieces, tools)
            assert calls_of(events)[0][0] == "f" and json.loads(calls_of(events)[0][1]) == {key: expected}, (key, text)


def test_text_may_contain_marks_of_parameters():
    text, expected = rendered(
        "xml", [("write-file2", {"path": "a", "text": "x </parameter> y\n</parameter>\n<b> </function>z"})]
    )
    for pieces in ([text], list(text)):
        _, events = parsed(found("xml")[1], pieces)
        assert [(call, json.loads(arguments)) for call, arguments in calls_of(events)] == expected


def test_white_space_and_frequent_mistakes_of_models_are_accepted():
    tool_format, expected = generic_format(), [("f", {"a": "x\ny"})]
    for text in (
        '<tool_call>{"name":"f","arguments":{"a":"x\\ny"}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}',
        '<tool_call>\n\n{"arguments": {"a": "x\\ny"}, "name": "f"}\n\n</tool_call>',
        '<tool_call>[{"name": "f", "arguments": {"a": "x\\ny"}}]</tool_call>',
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"x\\\\ny\\"}"}</tool_call>',
        '<tool_call>{"type": "function", "function": {"name": "f", "arguments": {"a": "x\\ny"}}}</tool_call>',
    ):
        for pieces in ([text], list(text)):
            _, events = parsed(tool_format, pieces)
            assert [(call, json.loads(arguments)) for call, arguments in calls_of(events)] == expected, text
            assert content_of(events) == ""
    _, events = parsed(
        tool_format, ['<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "g", "arguments": null}</tool_call>']
    )
    assert calls_of(events) == [("f", "{}"), ("g", "{}")]
    _, events = parsed(found("xml")[1], ["<function=get_weather><parameter=city>Rome</parameter></function>"])
    assert calls_of(events) == [("get_weather", '{"city": "Rome"}')]


def test_content_around_calls_is_kept():
    text = 'One <b>two</b>.\n\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n\nThree < four. '
    for pieces in ([text], list(text)):
        _, events = parsed(generic_format(), pieces)
        assert content_of(events) == "One <b>two</b>.Three < four. " and calls_of(events) == [("f", "{}")]
    plain = "  no call: <tool, {\"a\": 1} \n"
    for name in FAMILIES:
        _, events = parsed(found(name)[1], list(plain))
        assert content_of(events) == plain and not calls_of(events), name


def test_content_is_held_back_only_while_a_mark_is_possible():
    parser = generic_format().parser(TOOLS)
    assert parser.push("Hello <tool") == [Content("Hello")]
    assert parser.push("box> ") == [Content(" <toolbox>")]
    assert parser.finish() == [Content(" ")]


def test_bare_json_is_a_call_only_with_a_known_name():
    tool_format = found("bare json")[1]
    for text in (
        '{"name": "other", "parameters": {}}',
        '{"answer": 42}',
        "{not json",
        '{"name": "get_weather", "parameters": [1]}',
    ):
        for pieces in ([text], list(text)):
            _, events = parsed(tool_format, pieces)
            assert (content_of(events), calls_of(events)) == (text, []), text


def test_cut_off_calls_are_reported():
    parser, events = parsed(generic_format(), ['<tool_call>{"name": "f", "arguments": {"path": "/home/a'])
    assert calls_of(events) == [("f", '{"path": "/home/a')] and parser.broken == [
        0
    ]  # never a shortened path in valid JSON
    parser, events = parsed(generic_format(), ['<tool_call>{"name": "f", "arguments": {}}</tool_'])  # only the mark is cut off
    assert (content_of(events), calls_of(events), parser.broken) == ("", [("f", "{}")], [])
    parser, events = parsed(generic_format(), ['Yes. <tool_call>{"name": "f", "argu'])
    assert (content_of(events), calls_of(events), parser.broken) == ('Yes.{"name": "f", "argu', [], [])


@pytest.mark.parametrize("name", [name for name in known() if name not in WITHOUT_CALLS])
def test_single_call_ends_the_answer(name):
    tool_format, rng = found(name)[1], random.Random(3)
    text, expected = rendered(name, CALLS[::-1])
    for pieces in ([text], list(text), *(cut(text, rng) for _ in range(5))):
        parser, events = tool_format.parser(TOOLS, parallel=False), []
        for piece in pieces:
            has_ended, new = parser.ended, parser.push(piece)
            assert not (has_ended and new)
            events += new
        events += parser.finish()
        assert [(call, json.loads(arguments)) for call, arguments in calls_of(events)] == expected[:1], text
        assert parser.ended and not parser.broken and isinstance(events[-1], CallArguments)


def test_broken_call_does_not_end_the_answer():
    parser = generic_format().parser(TOOLS, parallel=False)
    call = '<tool_call>{"name": "f", "arguments": {"a": %s}}</tool_call>'
    events = parser.push(call % "?" + call % "1" + call % "2")
    assert parser.ended and parser.broken == [0] and calls_of(events)[1:] == [("f", '{"a": 1}')]


def damaged(text, rng, junk):
    text = text[:rng.randrange(len(text) + 1)] if rng.random() < 0.4 else text
    for _ in range(rng.choice([1, 1, 2, 5])):
        place = rng.randrange(len(text) + 1)
        text = text[:place] + rng.choice(junk) + text[place + rng.choice([0, 0, 1, 3, 12]):]
    return text


@pytest.mark.parametrize("name", [name for name in known() if name not in WITHOUT_CALLS])
def test_damaged_answers_lose_no_text_and_leak_no_marks(name):
    tool_format = found(name)[1]
    whole = rendered(name, CALLS)[0]
    marks = sorted((mark for mark in tool_format.other_marks if mark.strip()), key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, marks)) or "(?!)")
    rng = random.Random(name)
    junk = [
        "",
        "x",
        "{",
        "}",
        '"',
        "<",
        ">",
        "\n",
        "word word",
        "\\",
        *marks,
        *tool_format.marks,
        tool_format.parameter_begin,
        "[",
        "]",
    ]
    for _ in range(150):
        text = damaged(whole, rng, junk)
        parser, events = parsed(tool_format, cut(text, rng))
        calls, content = calls_of(events), content_of(events)
        other, whole_events = parsed(tool_format, [text])  # the division into pieces changes nothing
        assert (calls_of(whole_events), content_of(whole_events), other.broken) == (calls, content, parser.broken), text
        for index, (_, arguments) in enumerate(calls):
            if index not in parser.broken:
                assert isinstance(json.loads(arguments), dict), text
        leaked = [event.text for event in events if isinstance(event, Content) and pattern.search(event.text)]
        assert not leaked, text
        if not calls:  # all words of the answer are content
            assert "".join(content.split()) == "".join(pattern.sub("", text).split()), text


def test_any_text_gives_no_exception():
    rng = random.Random(7)
    for name in known():
        tool_format = found(name)[1]
        words = [
            *tool_format.other_marks,
            *tool_format.marks,
            tool_format.call_end,
            tool_format.parameter_begin,
            "{",
            "}",
            "[",
            "]",
            '"',
            ":",
            ",",
            '"name"',
            '"arguments"',
            "get_weather",
            "city",
            " ",
            "\n",
            "1",
            "true",
            "\\u12",
            "(",
            ")",
            "=",
        ]
        for _ in range(200):
            text = "".join(rng.choice(words) for _ in range(rng.randrange(30)))
            parsed(tool_format, cut(text, rng))


def test_deep_and_long_arguments_end():
    deep = '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 100_000
    parser, events = parsed(generic_format(), cut(deep, random.Random(1)))
    assert parser.broken == [0] and len(content_of(events)) > 90_000
    with_calls = "<|tool_call_start|>[" + "f(a=" * 5000
    for name in ("LFM2.5-8B-A1B",):
        if name in PUBLISHED:
            assert not calls_of(parsed(found(name)[1], [with_calls])[1])
    long = "x" * 300_000
    text = json.dumps({"name": "f", "arguments": {"a": long}})
    _, events = parsed(generic_format(), cut("<tool_call>" + text, random.Random(2)))
    assert json.loads(calls_of(events)[0][1]) == {"a": long}


def test_instructions_list_the_tools_and_show_the_form():
    text = generic_format().instructions(TOOLS)
    assert "get_weather" in text and "write-file2" in text and '"integer"' in text
    example = text.partition("in this form:\n")[2]
    _, events = parsed(generic_format(), [example])
    assert calls_of(events) == [("NAME", '{"PARAMETER": "VALUE"}')]
    for name in known():
        example = found(name)[1].instructions(TOOLS).partition("in this form:\n")[2]
        _, events = parsed(found(name)[1], [example], [{"name": "NAME"}])
        if found(name)[1].form not in ("gemma", "pythonic"):
            assert calls_of(events) == [("NAME", '{"PARAMETER": "VALUE"}')], name


def test_marks_contain_the_control_tokens():
    assert generic_format().marks == ["</tool_call>", "<tool_call>"]
    assert found("named")[1].marks == ["[ARGS]", "[CALL_ID]", "[TOOL_CALLS]"]
    assert {"<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"} <= set(found("kimi")[1].marks)


def test_templates_that_expect_text_get_text():
    template = FAMILIES["json"].replace("f.arguments | tojson", "f.arguments + ''")
    with Renderer(template, TOKENS, "text") as renderer:
        tool_format = detect(renderer)
        assert tool_format.arguments_as_text
        text = "".join(piece for piece, _ in renderer.render(tool_format.prepared([said(CALLS[1:])])))
    assert json.dumps(CALLS[1][1]) in text
