#!/usr/bin/env python3
"""Stands in for llama-server in llama.cpp's server tests: translates its flags and runs `shoal serve`.

Environment:
  SHOAL_PROGRAM       path of shoal
  SHOAL_TEST_MODEL    GGUF file of the model; replaces the model that a test names
  SHOAL_SERVE_FLAGS   more flags of `shoal serve`, such as "--devices CPU0,CPU1 -ts 3,1"; optional

A flag without translation is an error, so that no test passes by accident. The server then exits, and the test fails.
"""

import os
import shlex
import sys
import tempfile

# Flags with a value -> the same flag of `shoal serve`.
SAME = {
    "--port": "--port",
    "--host": "--host",
    "--temp": "--temp",
    "--seed": "--seed",
    "--n-predict": "-n",
    "--batch-size": "-b",
    "--ubatch-size": "-ub",
    "--threads": "-t",
    "-ctk": "-ctk",
    "-ctv": "-ctv",
    "--alias": "--alias",
    "--parallel": "-np",
    "--chat-template-file": "--template",
    "--cors-origins": "--cors-origin",
}
# Flags with a value that this program reads itself.
READ = {"--ctx-size", "--api-key", "--chat-template", "--reasoning"}
# The tests choose the model by these flags; SHOAL_TEST_MODEL replaces it.
MODEL = {"--hf-repo", "--hf-file", "--model", "--model-url"}
# Flags with a value that do not change answers: a cache in host memory, labels, kernels, names of fields.
WITHOUT_EFFECT = {"--cache-ram", "--tags", "-fa", "--reasoning-format", "--n-gpu-layers"}
# Flags without a value that describe the normal behaviour of `shoal serve`, or only change the log.
NORMAL = {
    "--offline",
    "--cont-batching",
    "--jinja",
    "--no-jinja",
    "--metrics",
    "--slots",
    "--verbose",
    "--no-ui",
    "--swa-full",
    "--no-cache-idle-slots",
    "--no-mmproj",
    "--backend_sampling",
}
SWITCHES = {"--no-slots", "--kv-unified"}
# Templates that llama-server knows by name. The tests need a few of them.
TEMPLATES = {
    "chatml": "",  # shoal uses ChatML if a file has no template
    "llama3": (
        "{% for message in messages %}"
        "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content + '<|eot_id|>' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
    ),
    "command-r": (
        "{% for message in messages %}"
        "{{ '<|START_OF_TURN_TOKEN|><|' + {'assistant': 'CHATBOT'}.get(message.role, message.role.upper()) }}"
        "{{ '_TOKEN|>' + message.content + '<|END_OF_TURN_TOKEN|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"
    ),
}
DEFAULT_CONTEXT = 4096  # tokens per request if a test names no context


class UnknownFlag(Exception):
    """A flag that cannot be translated."""


def read(arguments: list[str]) -> tuple[dict[str, str], set[str]]:
    """Flags with values, and flags without. Raises UnknownFlag."""
    values: dict[str, str] = {}
    switches: set[str] = set()
    words = iter(arguments)
    for word in words:
        if word in NORMAL or word in SWITCHES:
            switches.add(word)
        elif word in SAME or word in READ or word in MODEL or word in WITHOUT_EFFECT:
            values[word] = next(words, "")
        else:
            raise UnknownFlag(f"shoal serve has no counterpart of {word}")
    return values, switches


def context_flags(values: dict[str, str], switches: set[str]) -> list[str]:
    """llama-server divides the context among its slots, unless they share it."""
    slots = int(values.get("--parallel", "1"))
    total = int(values.get("--ctx-size", DEFAULT_CONTEXT * slots))
    each = total if "--kv-unified" in switches else total // slots
    return ["-c", str(total), "--max-context", str(each)]


def template_flags(values: dict[str, str]) -> list[str]:
    flags = []
    given = values.get("--chat-template", "chatml")
    template = TEMPLATES.get(given, given)
    if template:
        with tempfile.NamedTemporaryFile("w", suffix=".jinja", delete=False) as file:
            file.write(template)
        flags += ["--template", file.name]
    if "--reasoning" in values:  # auto: the model thinks if its template can ask for it
        flags += ["--template-var", f"enable_thinking={'false' if values['--reasoning'] == 'off' else 'true'}"]
    return flags


def translate(arguments: list[str], model: str) -> list[str]:
    """Flags of `shoal serve`."""
    values, switches = read(arguments)
    flags = ["-m", model]
    for name, value in values.items():
        if name in SAME:
            flags += [SAME[name], value]
    flags += context_flags(values, switches) + template_flags(values)
    return flags


def main() -> None:
    program = os.environ["SHOAL_PROGRAM"]
    try:
        flags = translate(sys.argv[1:], os.environ["SHOAL_TEST_MODEL"])
    except (UnknownFlag, ValueError) as error:
        sys.exit(f"llama_server_shim: {error}")
    arguments = sys.argv[1:]
    environment = dict(os.environ)
    if "--api-key" in arguments:  # a key in the arguments of a process is visible to other users
        environment["SHOAL_API_KEY"] = arguments[arguments.index("--api-key") + 1]
    command = [program, "serve", *flags, *shlex.split(environment.get("SHOAL_SERVE_FLAGS", ""))]
    print("llama_server_shim:", shlex.join(command), flush=True)
    os.execve(program, command, environment)


if __name__ == "__main__":
    main()
