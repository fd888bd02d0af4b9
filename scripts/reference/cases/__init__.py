"""The list of all cases."""

from . import cohere, deepseek, gated_delta, gemma, gemma4, glm, gpt_oss, granite, lfm, llama, minimax, olmo, phi, qwen

FAMILIES = (llama, qwen, gated_delta, gemma, gemma4, phi, gpt_oss, glm, granite, olmo, cohere, deepseek, minimax, lfm)
CASES = [case for family in FAMILIES for case in family.CASES]
