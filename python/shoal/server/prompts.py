"""Prompts of text completions: text, token ids, both mixed, or a list of prompts."""
from typing import TYPE_CHECKING, Any

from .errors import invalid
from .fields import Fields, shown

if TYPE_CHECKING:
    from .backend import Backend

MOST_PROMPTS = 64


async def read_prompts(backend: "Backend", fields: Fields) -> tuple[list[list[int]], bool]:
    """Reads the prompts in another thread, because the tokens of long texts take seconds."""
    return await backend.loop.run_in_executor(None, read_all, backend, fields)


def read_all(backend: "Backend", fields: Fields) -> tuple[list[list[int]], bool]:
    """The token ids of each prompt, and whether the request has a list of prompts."""
    prompt = fields.get("prompt")
    if prompt is None:
        raise invalid("prompt", "is missing; give a text")
    if not isinstance(prompt, list):
        return [read_prompt(backend, prompt)], False
    if not prompt:
        raise invalid("prompt", "is an empty list; give a text")
    if any(is_token(part) for part in prompt):  # one prompt of ids and texts
        return [read_mixed(backend, prompt)], False
    if len(prompt) > MOST_PROMPTS:
        raise invalid("prompt", f"has {len(prompt)} entries; the limit is {MOST_PROMPTS}")
    return [read_prompt(backend, one) for one in prompt], True


def is_token(part: Any) -> bool:
    return isinstance(part, int) and not isinstance(part, bool)


def read_prompt(backend: "Backend", prompt: Any) -> list[int]:
    if isinstance(prompt, str):
        backend.check_text(prompt)
        return backend.encode(prompt, parse_special=True)
    if isinstance(prompt, list):
        return read_mixed(backend, prompt)
    if isinstance(prompt, dict) and isinstance(prompt.get("prompt_string"), str):
        if prompt.get("multimodal_data"):
            raise invalid("prompt", "has images or audio; this server reads only text")
        return read_prompt(backend, prompt["prompt_string"])
    raise invalid("prompt", f"is {shown(prompt)}; give a text or a list of token ids")


def read_mixed(backend: "Backend", parts: list[Any]) -> list[int]:
    tokens: list[int] = []
    for index, part in enumerate(parts):
        if is_token(part):
            if not 0 <= part < backend.info["vocabulary"]:
                raise invalid("prompt", f"has the token {part}; the vocabulary has {backend.info['vocabulary']} tokens")
            tokens.append(part)
        elif isinstance(part, str):
            backend.check_text(part)
            tokens += backend.encode(part, add_special=index == 0, parse_special=True)
        else:
            raise invalid("prompt", f"has the entry {shown(part)}; give texts and token ids")
    return tokens
