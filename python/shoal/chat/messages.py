"""Checks the messages and tools of a chat request, and converts messages to the form that chat templates expect.

Errors are ValueError with one line that names the message: "messages[2].content[0] has the type image_url; ...".
"""
import json
import re
from typing import Any

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TEXT_TYPES = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}  # type: its field
NAME = re.compile(r"[\w.:/-]+")  # of a tool; formats of calls enclose names in quotes, brackets or tags
KEPT = ("name", "tool_call_id", "reasoning_content")


def normalise_messages(messages: Any, *, knows_developer: bool = False) -> list[dict[str, Any]]:
    """Returns messages for a template. Content becomes text, arguments of tool calls become objects, and results of
    tools get the name of their tool. The role developer becomes system unless the template knows it."""
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"messages is {shown(messages)}; give a list with at least one message")
    names: dict[str, str] = {}
    return [_message(message, f"messages[{index}]", names, knows_developer) for index, message in enumerate(messages)]


def check_tools(tools: list[Any]) -> None:
    """Checks tools in OpenAI's form."""
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ValueError(f'{where} is {shown(tool)}; give {{"type": "function", "function": {{"name": ...}}}}')
        if not isinstance(function.get("parameters") or {}, dict):
            raise ValueError(f"{where}.function.parameters is {shown(function['parameters'])}; give a JSON schema")


def check_names(tools: list[dict[str, Any]]) -> None:
    """Checks the names of tools in OpenAI's form."""
    for index, tool in enumerate(tools):
        name = tool["function"]["name"]
        if not NAME.fullmatch(name):
            raise ValueError(f"tools[{index}] has the name {shown(name)}; give a name of letters, digits, _, -, ., : and /")


def _message(message: Any, where: str, names: dict[str, str], knows_developer: bool) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise ValueError(f"{where} is {shown(message)}; give an object with role and content")
    role = message.get("role")
    if role not in ROLES:
        raise ValueError(f"{where}.role is {shown(role)}; give one of {', '.join(ROLES)}")
    result = {"role": "system" if role == "developer" and not knows_developer else role,
              "content": _text(message.get("content"), f"{where}.content")}
    for field in KEPT:
        if message.get(field) is not None:
            result[field] = _string(message[field], f"{where}.{field}")
    if role == "assistant":
        calls = _calls(message, where)
        names.update({call["id"]: call["function"]["name"] for call in calls})
        if calls:
            result["tool_calls"] = calls
    if role == "tool" and "tool_call_id" in message:
        identifier = _string(message["tool_call_id"], f"{where}.tool_call_id")
        if identifier in names:
            result.setdefault("name", names[identifier])
    return result


def shown(value: Any) -> str:
    """A value in an error message."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else text[:57] + "..."


def _string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where} is {shown(value)}; give a string")
    return value


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError(f"{where} is {shown(content)}; give a string or a list of parts")
    return "\n".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise ValueError(f"{where} is {shown(part)}; give an object with a type")
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in TEXT_TYPES:
        raise ValueError(f"{where} has the type {shown(kind)}; send text, because other types are not supported")
    return _string(part.get(TEXT_TYPES[kind]), f"{where}.{TEXT_TYPES[kind]}")


def _calls(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    if calls is None and isinstance(message.get("function_call"), dict):  # the old form of a call
        calls = [{"id": "", "type": "function", "function": message["function_call"]}]
    if calls is None:
        return []
    if not isinstance(calls, list):
        raise ValueError(f"{where}.tool_calls is {shown(calls)}; give a list")
    return [_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)]


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise ValueError(f"{where}.function is {shown(function)}; give an object with name and arguments")
    identifier = _string(call.get("id", ""), f"{where}.id")
    name = _string(function.get("name"), f"{where}.function.name")
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def _arguments(arguments: Any, where: str) -> dict[str, Any]:
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise ValueError(f"{where} is not valid JSON; send the text of the call unchanged") from None
    if not isinstance(arguments, dict):
        raise ValueError(f"{where} is {shown(arguments)}; give an object")
    return arguments
