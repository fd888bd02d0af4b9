"""Finds the format of tool calls from a template: renders calls with known names and values, and looks at the text
around them.

    <tool_call>\\n{"name": "alpha_probe", "arguments": {...}}\\n</tool_call>\\n<tool_call>\\n{"name": "omega_test", ...
    <- before --->                                       <-------- between -------->
"""

import json
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .templates import Renderer, TemplateError
from .tool_events import CallArguments, CallBegin
from .tool_marks import tags_in

if TYPE_CHECKING:
    from .tool_calls import ToolFormat

QUESTION, CONTENT, NUMBER = "Probe question?", "Probe content.", 48151623
NAMES, IDS = ("alpha_probe", "omega_test"), ("Aaaa1111b", "Zzzz9999y")
ARGUMENTS = ({"firstkey": "value one", "secondkey": "value two"}, {"thirdkey": "word three", "fourthkey": "word four"})
TOOLS = [{"type": "function", "function": {"name": name, "description": "A probe.", "parameters": {
    "type": "object", "properties": {key: {"type": "string", "description": "A word."} for key in arguments},
    "required": list(arguments), "additionalProperties": False}}} for name, arguments in zip(NAMES, ARGUMENTS)]
THOUGHT_END = re.compile(r"</[^<>\s]*think[^<>\s]*>|\[/THINK\]|<\|END_THINKING\|>|<channel\|>")
# Tokens that end a turn.
ENDS = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|eot|>",
    "<|eom|>",
    "<|calls|>",
    "<|end_of_msg|>",
    "</s>",
    "<|END_OF_TURN_TOKEN|>",
    "<|START_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>",
    "<SPECIAL_12>",
    "<|tool_response>",
    "<turn|>",
    "<｜hy_eos:opensource｜>",
)
BORDER = re.compile(r"(?<=[>\]])\s*(?=[<\[])|\n+(?=<)")
DECODER = json.JSONDecoder()
Format = Callable[..., "ToolFormat"]


def lists_tools(renderer: Renderer) -> bool:
    """Whether the template puts the tools into the prompt."""
    text = _render(renderer, [], generates=True)
    return text is not None and all(name in text for name in NAMES)


def derive(renderer: Renderer, make: Format) -> "ToolFormat | None":
    """Derives the format. `make`: the class ToolFormat. Returns None if the template shows no calls or the form is
    unknown."""
    if "tool_calls" not in renderer.template:
        return None
    for count in (2, 1):
        for as_text in (False, True):
            for content in (CONTENT, "", None):
                answer = _answer(renderer, content, as_text, count)
                if answer is None:
                    continue
                more = {"arguments_as_text": as_text, "null_content": content is None, "one_call": count == 1}
                for analyse in (_json_form, _named_form, _parameter_form):
                    found = analyse(answer, renderer, more)
                    if found is not None and not _shows_probe(found) and _reads(tool_format := make(**found), answer):
                        return tool_format
    return None


def _render(renderer: Renderer, messages: list[dict[str, Any]], *, generates: bool = False,
            tools: list[dict[str, Any]] | None = None) -> str | None:
    try:
        parts = renderer.render([{"role": "user", "content": QUESTION}, *messages], tools=tools or TOOLS,
                                add_generation_prompt=generates)
    except TemplateError:
        return None
    return "".join(text for text, _ in parts)


def _said(content: str | None, as_text: bool, count: int, arguments: Any = ARGUMENTS) -> dict[str, Any]:
    calls = [{"id": IDS[i], "type": "function", "function": {
        "name": NAMES[i], "arguments": json.dumps(arguments[i]) if as_text else arguments[i]}} for i in range(count)]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def _answer(
    renderer: Renderer, content: str | None, as_text: bool, count: int, arguments: Any = ARGUMENTS
) -> str | None:
    """The text of an answer with calls of the probe."""
    answer = answer_text(renderer, _said(content, as_text, count, arguments), TOOLS)
    return None if answer is None or (count == 2 and NAMES[1] not in answer) else answer


def answer_text(renderer: Renderer, message: dict[str, Any], tools: list[dict[str, Any]]) -> str | None:
    """The text that a model would write for a message with calls: without the content, the header and the end of the
    turn. Returns None if the template does not show the first call."""
    whole = _render(renderer, [message], tools=tools)
    prompt = _render(renderer, [], generates=True, tools=tools)
    plain = _render(renderer, [{"role": "assistant", "content": CONTENT}], tools=tools)
    if whole is None or prompt is None:
        return None
    place = max(whole.rfind(QUESTION) + len(QUESTION), len(_whole_tags(os.path.commonprefix([whole, prompt]))))
    content = message["content"]
    if content and content in whole[place:]:
        place = whole.index(content, place) + len(content)
    answer = whole[place:]
    if plain is not None and (tail := plain.rpartition(CONTENT)[2]) and answer.endswith(tail):
        answer = answer[:-len(tail)]
    function = message["tool_calls"][0]["function"]
    key = (
        answer.find(next(iter(function["arguments"]), ""))
        if isinstance(function["arguments"], dict)
        else answer.find("key")
    )
    name = answer.rfind(function["name"], 0, key) if key > 0 else answer.find(function["name"])
    if name < 0 or any(
        stop in answer[:name] for stop in ENDS
    ):  # not shown, or the template begins a turn for the calls
        return None
    thoughts = list(THOUGHT_END.finditer(answer, 0, name))
    end = min((found for stop in ENDS if (found := answer.find(stop, name)) >= 0), default=len(answer))
    return answer[thoughts[-1].end() if thoughts else 0:end]


def _reads(tool_format: "ToolFormat", answer: str) -> bool:
    """Whether the format reads the rendered answer without a rest."""
    parser = tool_format.parser(TOOLS)
    events = parser.push(answer) + parser.finish()
    names = [event.name for event in events if isinstance(event, CallBegin)]
    texts = ["".join(event.fragment for event in events if isinstance(event, CallArguments) and event.index == i)
             for i in range(len(names))]
    if (
        parser.broken
        or not names
        or len(events) != len([e for e in events if isinstance(e, (CallBegin, CallArguments))])
    ):
        return False
    return names == list(NAMES[:len(names)]) and [json.loads(text) for text in texts] == list(ARGUMENTS[:len(names)])


def _shows_probe(fields: dict[str, Any]) -> bool:
    """Whether the name of the probe is part of a mark. Such a form is unknown."""
    return any(name in str(value) for name in NAMES for value in fields.values())


def _chunks(text: str) -> list[str]:
    """The marks of a text: <tool_call>\\n<function= are two."""
    return [chunk for chunk in BORDER.split(text.strip()) if chunk]


def _whole_tags(text: str) -> str:
    """The text without an incomplete tag at its end."""
    start = text.rfind("<")
    return text[:start].rstrip() if start >= 0 and ">" not in text[start:] else text


def _prefix(first: str, second: str) -> str:
    """The common beginning, without an incomplete tag at its end."""
    return _whole_tags(os.path.commonprefix([first, second]))


def _suffix(first: str, second: str) -> str:
    """The common end, from its first mark on."""
    common = os.path.commonprefix([first[::-1], second[::-1]])[::-1]
    starts = [place for sign in "<[" if (place := common.find(sign)) >= 0]
    return common[min(starts):] if starts else ""


def _around(before: str, between: str | None, after: str) -> dict[str, Any]:
    """Divides the texts before, between and after two calls into the marks of one call and of all calls together."""
    if between is None:
        return {"begin": before.lstrip(), "end": after.rstrip(), "opening": "", "separator": "\n", "closing": ""}
    end = _prefix(between, after)
    begin = _suffix(before, between[len(end):])
    if not begin.strip():
        return {"begin": "", "end": "", "opening": before.lstrip(), "separator": between, "closing": after.rstrip()}
    return {"begin": begin, "end": end, "opening": before[:len(before) - len(begin)].lstrip(),
            "separator": between[len(end):len(between) - len(begin)], "closing": after[len(end):].rstrip()}


def _common(around: dict[str, Any], renderer: Renderer, more: dict[str, Any]) -> dict[str, Any]:
    """Fields of all forms. The last mark before a call is its trigger; the other marks are dropped."""
    opening = _chunks(around["opening"] + around["begin"])
    closing = [*_chunks(around["end"]), *_chunks(around["closing"]), *_chunks(around["separator"])]
    triggers = tuple(opening[-1:])
    tags = [tag for text in (*opening, *closing) for tag in tags_in(text)]
    dropped = {mark for mark in (*opening[:-1], *closing, *tags) if tags_in(mark) or mark[0] == "<"} - set(triggers)
    family = "kimi" if "<|tool_call_argument_begin|>" in renderer.template else \
        "mistral" if "[TOOL_CALLS]" in renderer.template else ""
    fields = {name: around[name] for name in ("opening", "separator", "closing")}
    return {
        **fields,
        **more,
        "triggers": triggers,
        "dropped": tuple(sorted(dropped)),
        "call_end": around["end"],
        "family": family,
    }


def _decoded(text: str, place: int) -> tuple[Any, int] | None:
    try:
        return DECODER.raw_decode(text, place)
    except (ValueError, RecursionError):
        return None


def _object_with(text: str, place: int, name: str) -> tuple[dict[str, Any], int, int] | None:
    """The outermost JSON object at or after `place` that contains the name."""
    for start in (match.start() for match in re.finditer(r"\{", text[place:])):
        decoded = _decoded(text, place + start)
        if decoded is not None and name in json.dumps(decoded[0]):
            return decoded[0], place + start, decoded[1]
    return None


def _json_form(answer: str, renderer: Renderer, more: dict[str, Any]) -> dict[str, Any] | None:
    first = _object_with(answer, 0, NAMES[0])
    if first is None:
        return None
    value, start, end = first
    before, second = answer[:start], _object_with(answer, end, NAMES[1])
    between, after = (answer[end:second[1]], answer[second[2]:]) if second else (None, answer[end:])
    keys = _keys(value)
    call = _json_call(answer[start:end], keys) if keys is not None else None
    if keys is None or call is None:
        return None
    if before.rstrip().endswith("["):  # a list: only the text before it is a mark
        around = {"begin": before.rstrip()[:-1].lstrip(), "end": "", "opening": "", "separator": between or ", ",
                  "closing": after.rstrip()}
        fields = _common({**around, "end": after.lstrip().removeprefix("]")}, renderer, more)
        fields.update(opening=before.lstrip(), separator=around["separator"], closing=around["closing"], call=call)
    else:
        around = _around(before, between, after)
        fields = _common(around, renderer, more)
        fields["call"] = (around["begin"] + call[0], *call[1:-1], call[-1] + around["end"])
    if not fields["triggers"]:
        tag = ("<|python_tag|>",) if "ipython" in renderer.template else ()
        fields.update(at_start=("{",), triggers=tag, needs_known_names=True)
    return {**fields, **keys, "form": "json"}


def _keys(value: dict[str, Any]) -> dict[str, str] | None:
    """The keys of the name, the arguments and the id."""
    if value == {NAMES[0]: ARGUMENTS[0]}:
        return {"name_key": "", "arguments_key": "", "id_key": ""}
    name = [key for key, item in value.items() if item == NAMES[0]]
    arguments = [key for key, item in value.items() if item == ARGUMENTS[0]]
    ids = [key for key, item in value.items() if item == IDS[0] or item == "0"]
    if not name or not arguments:
        return None
    return {"name_key": name[0], "arguments_key": arguments[0], "id_key": ids[0] if ids else ""}


def _json_call(text: str, keys: dict[str, str]) -> tuple[str, ...] | None:
    """Divides the text of an object at the name, the arguments and the id."""
    found = None
    for start in (match.start() for match in re.finditer(r"\{", text)):
        decoded = _decoded(text, start)
        if decoded is not None and decoded[0] == ARGUMENTS[0]:
            found = (start, decoded[1])
    if found is None:
        return None
    text = text[:found[0]] + "\0arguments\1" + text[found[1]:]
    text = text.replace(NAMES[0], "\0name\1", 1)
    if keys["id_key"]:
        text = re.sub(f'("{re.escape(keys["id_key"])}"' + r'\s*:\s*)"\w+"', '\\1"\0id\1"', text)
    return tuple(part for part in re.split("(\0[a-z]+)\1", text) if part)


def _two(answer: str) -> tuple[int, int | None]:
    """The places of both names."""
    first = answer.rfind(NAMES[0], 0, answer.index("firstkey"))
    third = answer.find("thirdkey")
    return first, (answer.rfind(NAMES[1], 0, third) if third >= 0 else None)


def _hole(first: str, second: str | None) -> tuple[str, str]:
    """Divides a mark with a variable part into the texts before and after this part."""
    if second is None or first == second:
        return first, ""
    head = os.path.commonprefix([first, second])
    tail = re.sub(r"^\w+", "", os.path.commonprefix([first[::-1], second[::-1]])[::-1])
    return head, tail


def _named_form(answer: str, renderer: Renderer, more: dict[str, Any]) -> dict[str, Any] | None:
    ends, marks = [], []
    names = [place for place in _two(answer) if place is not None]
    for index, place in enumerate(names):
        brace = answer.find("{", place)
        decoded = _decoded(answer, brace) if brace >= 0 else None
        if decoded is None or decoded[0] != ARGUMENTS[index]:
            return None
        marks.append(answer[place + len(NAMES[index]):brace])
        ends.append(decoded[1])
    before = answer[:names[0]]
    between = answer[ends[0]:names[1]] if len(names) == 2 else None
    around = _around(before, between, answer[ends[-1]:])
    if not tags_in(around["begin"]) and "<" not in around["begin"] or IDS[0] in before:
        return None
    head, tail = _hole(marks[0], marks[1] if len(marks) == 2 else None)
    hole = ("\0id", tail) if tail else ()
    call = (around["begin"], "\0name", head, *hole, "\0arguments", around["end"])
    return {**_common(around, renderer, more), "form": "named", "name_head": head, "name_tail": tail,
            "call": tuple(part for part in call if part)}


def _parameter_spans(answer: str, names: list[int]) -> list[tuple[int, int]] | None:
    """The places of all keys and values in their order. Returns None if a text is missing."""
    spans, place = [], names[0]
    for arguments in ARGUMENTS[:len(names)]:
        for text in (text for item in arguments.items() for text in item):
            place = answer.find(text, place)
            if place < 0:
                return None
            spans.append((place, place + len(text)))
            place += len(text)
    return spans


def _parameter_form(answer: str, renderer: Renderer, more: dict[str, Any]) -> dict[str, Any] | None:
    names = [place for place in _two(answer) if place is not None]
    spans = _parameter_spans(answer, names)
    if spans is None:
        return None
    key1, value1, key2, value2 = spans[:4]
    between_values = answer[value1[1]:key2[0]]
    end = _prefix(between_values, answer[value2[1]:])
    first_mark = answer[names[0] + len(NAMES[0]):key1[0]]
    begin = _suffix(first_mark, between_values[len(end):])
    begin = begin[max(begin.rfind("<"), 0):]
    if not begin or not end.strip():
        return None
    has_two = len(names) == 2
    between_calls = answer[value2[1] + len(end):names[1]] if has_two else None
    around = _around(answer[:names[0]], between_calls, answer[spans[-1][1] + len(end):])
    second_mark = answer[names[1] + len(NAMES[1]):spans[4][0]].removesuffix(begin) if has_two else None
    head, tail = _hole(first_mark.removesuffix(begin), second_mark)
    call = (around["begin"], "\0name", head, *(("\0id", tail) if tail else ()), "\0arguments", around["end"])
    return {
        **_common(around, renderer, more),
        **_value_marks(renderer, more, answer[key1[1] : value1[0]], end),
        "form": "parameters",
        "call": tuple(part for part in call if part),
        "name_head": head,
        "name_tail": tail,
        "call_end": (_chunks(around["end"]) or [""])[0],
        "parameter_begin": begin,
        "parameter_gap": between_values[len(end) :].removesuffix(begin),
        "has_cdata": "<![CDATA[" in renderer.template,
    }


def _value_marks(renderer: Renderer, more: dict[str, Any], key_end: str, end: str) -> dict[str, Any]:
    """Divides the texts around a value into marks and a line break on both sides."""
    pad = "\n" if key_end.endswith("\n") and end.startswith("\n") else ""
    head, tail, hole = _key_hole(renderer, more, key_end)
    return {"key_head": head if tail else head.removesuffix(pad), "key_tail": tail, "string_hole": hole,
            "value_pad": pad, "value_end": end.removeprefix(pad)}


def _key_hole(renderer: Renderer, more: dict[str, Any], key_end: str) -> tuple[str, str, str]:
    """Divides the mark after a key that states the type of the value. A number shows another type than a string."""
    content = None if more["null_content"] else ""
    numbers = [{key: NUMBER for key in arguments} for arguments in ARGUMENTS]
    answer = _answer(renderer, content, more["arguments_as_text"], 1, numbers)
    key = answer.find("firstkey") + len("firstkey") if answer else -1
    number = answer.find(str(NUMBER), key) if answer else -1
    if answer is None or number < 0 or answer[key:number] == key_end:
        return key_end, "", ""
    head, tail = _hole(key_end, answer[key:number])
    return head, tail, key_end[len(head):len(key_end) - len(tail)]
