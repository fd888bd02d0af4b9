"""The cases of every family."""

from . import gemma, llama, qwen

CASES = [*llama.CASES, *qwen.CASES, *gemma.CASES]
