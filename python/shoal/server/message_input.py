"""Reads requests of Anthropic's Messages: from blocks to messages in OpenAI's format."""
import re
from typing import Any

from .chat_request import MOST_TOOLS, ChatInput
from .content import add_system, kind_of, others, part_text, read_format, read_variables, string, text_of, unreadable
from .errors import invalid
from .fields import Fields, shown
from .grammars import Schema

ROLES = ("user", "assistant", "system")
TEXT = {"text": "text"}
Turn = tuple[str, list[tuple[str, Any]]]  # role, and blocks with their places: ("messages[2].content[0]", {...})
THINKS = {"enabled": True, "disabled": False, "adaptive": None, "between_tools": None}
EFFORTS = {"xhigh": "high", "max": "high"}  # templates know low, medium and high
# Claude Code puts a checksum that always changes before the system prompt. Cached beginnings would never match.
CHECKSUM = re.compile(r"\Ax-anthropic-billing-header:( *\w+=[^;\s]*;)*\s*")


def read_messages(fields: Fields) -> tuple[ChatInput, list[str]]:
    """The conversation of a request, and the names of members without effect."""
    messages: list[dict[str, Any]] = []
    add_system(messages, system_text(fields.get("system")))
    for role, blocks in turns_of(fields):
        if role == "system":
            add_system(messages, "\n".join(part_text(block, where, TEXT) for where, block in blocks))
        else:
            messages += user_turn(blocks) if role == "user" else assistant_turn(blocks)
    continues = bool(messages) and messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls")
    tools, unused = read_tools(fields)
    choice, parallel = read_choice(fields, tools)
    schema, effort, more = read_output(fields)
    thinking = fields.object("thinking") or {}
    thinks = read_thinking(thinking)
    unused += [*more, *others(thinking, "thinking", "type")]
    variables = read_variables(fields, EFFORTS.get(effort or "", effort))
    return ChatInput(messages, tools, choice, parallel, variables, thinks, continues=continues, schema=schema), unused


def system_text(system: Any) -> str:
    return CHECKSUM.sub("", text_of(system, "system", TEXT))


def turns_of(fields: Fields) -> list[Turn]:
    """The messages. Neighbouring messages of the same role are one turn."""
    given = fields.get("messages")
    if not isinstance(given, list) or not given:
        raise invalid("messages", f"is {shown(given)}; give a list with at least one message")
    turns: list[Turn] = []
    for index, message in enumerate(given):
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or role not in ROLES:
            raise invalid(f"messages[{index}].role", f"is {shown(role)}; give user, assistant or system")
        blocks = blocks_of(message.get("content"), f"messages[{index}].content")
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((role, blocks))
    return turns


def blocks_of(content: Any, where: str) -> list[tuple[str, Any]]:
    if isinstance(content, str):
        return [(where, {"type": "text", "text": content})]
    if not isinstance(content, list):
        raise invalid(where, f"is {shown(content)}; give a string or a list of blocks")
    return [(f"{where}[{index}]", block) for index, block in enumerate(content)]


def user_turn(blocks: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """The results of tools first, because they belong to the calls before them. Then the text."""
    results = [result_message(block, where) for where, block in blocks if kind_of(block, where) == "tool_result"]
    texts = [part_text(block, where, TEXT) for where, block in blocks if block["type"] != "tool_result"]
    return [*results, {"role": "user", "content": "\n".join(texts)}] if texts or not results else results


def result_message(block: dict[str, Any], where: str) -> dict[str, Any]:
    text = text_of(block.get("content"), f"{where}.content", TEXT)
    if block.get("is_error"):
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": string(block.get("tool_use_id"), f"{where}.tool_use_id"), "content": text}


def assistant_turn(blocks: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    texts, thoughts, calls = [], [], []
    for where, block in blocks:
        kind = kind_of(block, where)
        if kind == "text":
            texts.append(part_text(block, where, TEXT))
        elif kind == "thinking":
            thoughts.append(string(block.get("thinking"), f"{where}.thinking"))
        elif kind == "tool_use":
            calls.append(call_of(block, where))
        elif kind != "redacted_thinking":  # encrypted for another model
            raise unreadable(kind, where)
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return [message]


def call_of(block: dict[str, Any], where: str) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise invalid(f"{where}.input", f"is {shown(arguments)}; give an object")
    return {"id": string(block.get("id"), f"{where}.id"), "type": "function",
            "function": {"name": string(block.get("name"), f"{where}.name"), "arguments": arguments}}


def read_tools(fields: Fields) -> tuple[list[dict[str, Any]], list[str]]:
    """The tools with a schema, and the names of the other tools, which Anthropic's servers or models define."""
    tools, unused = [], []
    for index, tool in enumerate(fields.array("tools", MOST_TOOLS) or []):
        where = f"tools[{index}]"
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            raise invalid(where, f"is {shown(tool)}; give {{\"name\": ..., \"input_schema\": ...}}")
        if tool.get("type") not in (None, "custom"):
            unused.append(f"{where} ({tool['type']})")
            continue
        if not isinstance(tool.get("input_schema"), dict):
            raise invalid(f"{where}.input_schema", f"is {shown(tool.get('input_schema'))}; give a JSON schema")
        function = {"name": tool["name"], "parameters": tool["input_schema"]}
        if tool.get("description") is not None:
            function["description"] = string(tool["description"], f"{where}.description")
        tools.append({"type": "function", "function": function})
    return tools, unused


def read_choice(fields: Fields, tools: list[dict[str, Any]]) -> tuple[str, bool]:
    """The choice in OpenAI's terms, and whether several calls are allowed."""
    choice = fields.object("tool_choice") or {"type": "auto"}
    kind, parallel = choice.get("type"), not choice.get("disable_parallel_tool_use")
    if kind == "tool":
        if choice.get("name") not in [tool["function"]["name"] for tool in tools]:
            raise invalid("tool_choice", f"names the tool {shown(choice.get('name'))}, which is not in tools or has no "
                          "input_schema; give the name of a tool with one")
        return str(choice["name"]), parallel
    if kind == "any":
        if not tools:
            raise invalid("tool_choice", "is any, but the request has no tools with an input_schema; add tools")
        return "required", parallel
    if kind not in ("auto", "none"):
        raise invalid("tool_choice", f"has the type {shown(kind)}; give auto, any, tool or none")
    return str(kind), parallel


def read_thinking(thinking: dict[str, Any]) -> bool | None:
    """True or False if the request asks for reasoning or for none. None: the template decides."""
    kind = thinking.get("type", "adaptive")
    if not isinstance(kind, str) or kind not in THINKS:
        raise invalid("thinking", f"has the type {shown(kind)}; give enabled, disabled or adaptive")
    return THINKS[kind]


def read_output(fields: Fields) -> tuple[Schema | None, str | None, list[str]]:
    """The grammar of the answer, the effort, and the names of members without effect."""
    config = fields.object("output_config") or {}
    form = config.get("format") or fields.get("output_format")  # the second is the older place
    effort = config.get("effort")
    if effort is not None:
        string(effort, "output_config.effort")
    return read_format(form, "output_config.format"), effort, others(config, "output_config", "format", "effort")
