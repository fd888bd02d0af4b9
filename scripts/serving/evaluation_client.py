"""Runs lm-evaluation-harness in the environment of the suites: evaluation_client.py URL FOLDER OUTPUT

FOLDER contains the tasks kjv_gen and kjv_mc. Writes a JSON object: the generated texts of kjv_gen by question, and the
log likelihoods of kjv_mc by question and choice. The harness needs a tokenizer for log likelihoods; this one asks the
server."""

import json
import os
import pathlib
import sys
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

import lm_eval  # noqa: E402
import requests  # noqa: E402
from lm_eval.models.openai_completions import LocalCompletionsAPI  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402


class Client(LocalCompletionsAPI):
    """Sends token ids. The server makes them from text."""

    def __init__(self, url: str) -> None:
        super().__init__(base_url=f"{url}/v1/completions", model="kjv", tokenizer_backend="none", num_concurrent=8)
        self._url = url
        self.tokenizer = self  # only its existence is checked

    def tok_encode(self, string: str, **_: Any) -> list[int]:
        answer = requests.post(f"{self._url}/tokenize", json={"content": string, "add_special": True}, timeout=60)
        answer.raise_for_status()
        return list(answer.json()["tokens"])

    def create_message(self, messages: Any, generate: bool = False) -> Any:
        return messages[0]

    @property
    def eos_string(self) -> str | None:
        return None


def main() -> None:
    url, folder, output = sys.argv[1:]
    found = lm_eval.simple_evaluate(
        model=Client(url),
        tasks=["kjv_gen", "kjv_mc"],
        log_samples=True,
        bootstrap_iters=0,
        task_manager=TaskManager(include_path=folder, include_defaults=False),
    )
    samples = found["samples"]
    texts = {one["doc"]["q"]: one["resps"][0][0] for one in samples["kjv_gen"]}
    values = {one["doc"]["q"]: [float(resp[0][0]) for resp in one["resps"]] for one in samples["kjv_mc"]}
    pathlib.Path(output).write_text(json.dumps({"kjv_gen": texts, "kjv_mc": values}))


if __name__ == "__main__":
    main()
