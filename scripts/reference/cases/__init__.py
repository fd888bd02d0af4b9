"""The cases of every family."""

from . import cohere, gemma, glm, gpt_oss, granite, llama, olmo, phi, qwen

FAMILIES = (llama, qwen, gemma, phi, gpt_oss, glm, granite, olmo, cohere)
CASES = [case for family in FAMILIES for case in family.CASES]
