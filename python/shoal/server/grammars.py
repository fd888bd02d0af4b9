"""Reads grammars of requests: response_format, json_schema and grammar."""
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..streams import Matcher
from .errors import ApiError, invalid
from .fields import Fields, shown

if TYPE_CHECKING:
    from .backend import Backend

Schema = tuple[str, Any]  # kind and value for GrammarCompiler.compile()


def read_schema(fields: Fields) -> Schema | None:
    """The grammar of a request; None if it has none."""
    found: dict[str, Schema] = {}
    if (grammar := fields.text("grammar")) is not None:
        found["grammar"] = "gbnf", grammar
    if (value := fields.get("json_schema")) is not None:
        found["json_schema"] = "json_schema", checked(value, "json_schema")
    if (form := read_format(fields.object("response_format") or {})) is not None:
        found["response_format"] = form
    if len(found) > 1:
        raise invalid(min(found), f"and {max(found)} both restrict the answer; omit one of them")
    return next(iter(found.values()), None)


def read_format(form: dict[str, Any]) -> Schema | None:
    """The grammar of response_format in OpenAI's format."""
    kind = form.get("type")
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        if form.get("schema") is None:
            return "json_object", None
        return "json_schema", checked(form["schema"], "response_format")
    if kind == "json_schema":
        inner = form.get("json_schema", form)
        if not isinstance(inner, dict) or inner.get("schema") is None:
            raise invalid("response_format", "has no json_schema.schema; give a schema")
        return "json_schema", checked(inner["schema"], "response_format")
    if kind == "grammar" and isinstance(form.get("grammar"), str):
        return "gbnf", form["grammar"]
    raise invalid("response_format", f"has the type {shown(kind)}; give text, json_object or json_schema")


def checked(schema: Any, param: str) -> Any:
    if not isinstance(schema, dict | bool):
        raise invalid(param, f"has the schema {shown(schema)}; give an object")
    return schema


async def read_matcher(backend: "Backend", fields: Fields) -> Callable[[], Matcher] | None:
    """A function that starts the grammar of an answer; None if the request has no grammar."""
    schema = read_schema(fields)
    if schema is None:
        return None
    try:
        grammar = await backend.loop.run_in_executor(None, backend.chat.grammars.compile, *schema)
    except ValueError as error:
        raise ApiError(400, str(error)) from None
    return grammar.matcher
