"""Reads the fields that Responses and Messages share: text content, effort, and the format of the answer."""
from typing import Any

from .chat_request import ChatRequest
from .errors import ApiError, invalid
from .fields import Fields, shown
from .grammars import Schema, checked

IMAGES = {"image", "image_url", "input_image"}


def text_of(content: Any, where: str, fields: dict[str, str]) -> str:
    """The text of a content: a string, or a list of parts. `fields`: the field with the text, by the type of a part."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(where, f"is {shown(content)}; give a string or a list of parts")
    return "\n".join(part_text(part, f"{where}[{index}]", fields) for index, part in enumerate(content))


def part_text(part: Any, where: str, fields: dict[str, str]) -> str:
    if isinstance(part, str):
        return part
    kind = kind_of(part, where)
    if kind not in fields:
        raise unreadable(kind, where)
    return string(part.get(fields[kind]), f"{where}.{fields[kind]}")


def unreadable(kind: str, where: str) -> ApiError:
    if kind in IMAGES:
        return invalid(where, "is an image, but image input is not supported; send text")
    return invalid(where, f"has the type {shown(kind)}, which is not supported; send text")


def kind_of(value: Any, where: str) -> str:
    """The type of a part, an item or a block."""
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        raise invalid(where, f"is {shown(value)}; give an object with a type")
    return kind


def string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise invalid(where, f"is {shown(value)}; give a string")
    return value


def add_system(messages: list[dict[str, Any]], text: str, role: str = "system") -> None:
    """Adds instructions. Neighbouring instructions become one message, because many templates allow only one."""
    if not text:
        return
    if messages and messages[-1]["role"] in ("system", "developer"):
        messages[-1]["content"] += f"\n\n{text}"
    else:
        messages.append({"role": role, "content": text})


def read_format(form: Any, where: str) -> Schema | None:
    """The grammar of a format with the schema at its top: {"type": "json_schema", "schema": {...}}."""
    if form is None:
        return None
    kind = kind_of(form, where)
    if kind == "text":
        return None
    if kind == "json_object":
        return "json_object", None
    if kind != "json_schema":
        raise invalid(where, f"has the type {shown(kind)}; give text, json_object or json_schema")
    if form.get("schema") is None:
        raise invalid(where, "has no schema; give a JSON schema")
    return "json_schema", checked(form["schema"], where)


def read_variables(fields: Fields, effort: str | None) -> dict[str, Any]:
    """Variables of the chat template. `effort`: how long the model reasons, such as "high"."""
    variables = dict(fields.object("chat_template_kwargs") or {})
    if effort not in (None, "none"):
        variables.setdefault("reasoning_effort", effort)
    return variables


def check_single(request: ChatRequest) -> None:
    if request.parameters.choices != 1:
        raise invalid("n", f"is {request.parameters.choices}; this interface gives one answer for each request")


def others(value: dict[str, Any], where: str, *known: str) -> list[str]:
    """Names of the members that have no effect."""
    return [f"{where}.{name}" for name, member in value.items() if name not in known and member is not None]
