"""Reads requests of OpenAI's Responses: from items to messages of chat completions."""
import json
from typing import Any

from .chat_request import MOST_TOOLS, ChatInput
from .content import add_system, kind_of, others, read_format, read_variables, string, text_of
from .errors import invalid
from .fields import Fields, shown

TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
THOUGHTS = {"reasoning_text": "text", "summary_text": "text", "text": "text"}
ROLES = ("user", "system", "developer", "assistant")
# Fields that need an earlier request or a request in the background.
UNSTORED = ("previous_response_id", "conversation", "prompt")


def read_responses(fields: Fields) -> tuple[ChatInput, list[str]]:
    """The conversation of a request, and the names of members without effect."""
    for name in UNSTORED:
        if fields.get(name) is not None:
            raise invalid(name, "refers to stored data, but this server stores nothing; send the conversation as input")
    if fields.flag("background"):
        raise invalid("background", "is true, but this server stores no answers; use stream for long answers")
    messages = read_messages(fields)
    tools, unused = read_tools(fields)
    text, reasoning = fields.object("text") or {}, fields.object("reasoning") or {}
    effort = reasoning.get("effort")
    if effort is not None:
        string(effort, "reasoning.effort")
    if fields.get("top_logprobs") is not None:
        unused.append("top_logprobs")
    unused += [*others(text, "text", "format"), *others(reasoning, "reasoning", "effort")]
    chat = ChatInput(messages, tools, read_choice(fields, tools), fields.flag("parallel_tool_calls", True),
                     read_variables(fields, effort), False if effort == "none" else None,
                     schema=read_format(text.get("format"), "text.format"))
    return chat, unused


def read_messages(fields: Fields) -> list[dict[str, Any]]:
    given = fields.get("input")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise invalid("input", f"is {shown(given)}; give a text or a list with at least one item")
    instructions = fields.text("instructions")
    messages: list[dict[str, Any]] = []
    add_system(messages, instructions or "")
    for index, item in enumerate(given):
        add_item(messages, item, f"input[{index}]")
    return messages


def add_item(messages: list[dict[str, Any]], item: Any, where: str) -> None:
    """Adds an item to the messages. Neighbouring items of the assistant are one message."""
    is_message = isinstance(item, dict) and item.get("type") is None and "role" in item
    kind = "message" if is_message else kind_of(item, where)
    if kind == "message":
        add_message(messages, item, where)
    elif kind == "function_call":
        assistant(messages).setdefault("tool_calls", []).append(call_of(item, where))
    elif kind == "function_call_output":
        messages.append({"role": "tool", "tool_call_id": string(item.get("call_id"), f"{where}.call_id"),
                         "content": text_of(item.get("output"), f"{where}.output", TEXTS)})
    elif kind == "reasoning":
        part = "content" if item.get("content") else "summary"
        add_text(assistant(messages), "reasoning_content", text_of(item.get(part), f"{where}.{part}", THOUGHTS))
    elif kind == "item_reference":
        raise invalid(where, "refers to a stored item, but this server stores nothing; send the item")
    else:
        raise invalid(where, f"has the type {shown(kind)}, which is not supported; "
                      "give messages, function calls and their outputs")


def add_message(messages: list[dict[str, Any]], item: dict[str, Any], where: str) -> None:
    role = item.get("role")
    if role not in ROLES:
        raise invalid(f"{where}.role", f"is {shown(role)}; give user, assistant, system or developer")
    text = text_of(item.get("content"), f"{where}.content", TEXTS)
    if role == "assistant":
        add_text(assistant(messages), "content", text)
    elif role == "user":
        messages.append({"role": "user", "content": text})
    else:
        add_system(messages, text, role)


def assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The last message, if it is the assistant's; otherwise a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def add_text(message: dict[str, Any], name: str, text: str) -> None:
    message[name] = f"{message[name]}\n{text}" if message.get(name) else text


def call_of(item: dict[str, Any], where: str) -> dict[str, Any]:
    arguments = string(item.get("arguments"), f"{where}.arguments")
    try:
        is_object = isinstance(json.loads(arguments or "{}"), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise invalid(f"{where}.arguments", f"is {shown(arguments)}; give the text of a JSON object")
    return {"id": string(item.get("call_id"), f"{where}.call_id"), "type": "function",
            "function": {"name": string(item.get("name"), f"{where}.name"), "arguments": arguments}}


def read_tools(fields: Fields) -> tuple[list[dict[str, Any]], list[str]]:
    """The function tools, and the names of the other tools, which only OpenAI's servers have."""
    tools, unused = [], []
    for index, tool in enumerate(fields.array("tools", MOST_TOOLS) or []):
        where = f"tools[{index}]"
        kind = kind_of(tool, where)
        if kind != "function":
            unused.append(f"{where} ({kind})")
            continue
        function = {"name": string(tool.get("name"), f"{where}.name"), "parameters": tool.get("parameters") or {}}
        if not isinstance(function["parameters"], dict):
            raise invalid(f"{where}.parameters", f"is {shown(function['parameters'])}; give a JSON schema")
        if tool.get("description") is not None:
            function["description"] = string(tool["description"], f"{where}.description")
        tools.append({"type": "function", "function": function})
    return tools, unused


def read_choice(fields: Fields, tools: list[dict[str, Any]]) -> str:
    choice = fields.get("tool_choice")
    if isinstance(choice, dict):
        if choice.get("type") != "function":
            raise invalid("tool_choice", f"has the type {shown(choice.get('type'))}; give the type function")
        if choice.get("name") not in [tool["function"]["name"] for tool in tools]:
            raise invalid("tool_choice", f"names the function {shown(choice.get('name'))}, which is not in tools")
        return str(choice["name"])
    if choice not in (None, "none", "auto", "required"):
        raise invalid("tool_choice", f"is {shown(choice)}; give none, auto, required or a function")
    if choice == "required" and not tools:
        raise invalid("tool_choice", "is required, but the request has no function tools; add one")
    return choice or "auto"
