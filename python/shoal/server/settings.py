"""Settings of the server, from the JSON of `shoal serve` (tools/commands/serve.cpp)."""
import ipaddress
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Limits:
    queue: int  # number of waiting requests
    body_bytes: int
    answer_tokens: int | None
    request_tokens: int | None  # tokens of a prompt and its answer
    request_seconds: float


@dataclass(frozen=True)
class Settings:
    model: list[str]  # flags of the engine
    host: str
    port: int
    api_key: str | None
    alias: str | None
    cors_origins: list[str]
    allowed_hosts: list[str]
    template: str | None  # text of the chat template
    template_name: str | None
    template_vars: dict[str, Any]
    limits: Limits
    ssl_certfile: str | None
    ssl_keyfile: str | None
    defaults: dict[str, Any]  # sampling of requests that do not set it

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse(text: str) -> Settings:
    """Reads the JSON, the API key and the template. Raises ValueError or OSError."""
    given = json.loads(text)
    key_file, template = given.pop("api_key_file"), given.pop("template")
    key = (Path(key_file).read_text() if key_file else os.environ.get("SHOAL_API_KEY", "")).strip(" \t\r\n")
    return Settings(**{**given, "limits": Limits(**given["limits"]), "api_key": key or None, "template_name": template,
                       "template": Path(template).read_text() if template else None})
