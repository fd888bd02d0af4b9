"""Requests with tools: schemas of answers without calls, single calls, and limits."""
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import NewServer

pytest.importorskip("shoal._shoal", reason="the compiled module is missing; build it", exc_type=ModuleNotFoundError)

USER = [{"role": "user", "content": "In the beginning"}]
PARAMETERS = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"]}
COUNT = {"type": "function", "function": {"name": "count", "parameters": PARAMETERS}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [17, 18]}}}
CALL = r'<tool_call>\n\{"name": "count", "arguments": \{"n": [0-9]\}\}\n</tool_call>\n'


def post(url: str, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
    return httpx.post(url + path, json={"messages": USER, **body}, timeout=60)


def wait_until_idle(url: str) -> None:
    end = time.monotonic() + 20
    while any(httpx.get(f"{url}/status").json()["requests"][name] for name in ("running", "waiting")):
        assert time.monotonic() < end, "a request still runs"
        time.sleep(0.02)


@pytest.fixture(name="two_calls")
def _two_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer is two calls and a long text."""
    from shoal.chat.format import ChatFormat

    monkeypatch.setattr(ChatFormat, "_matcher",
                        lambda self, *_: self.grammars.compile("regex", f"({CALL}){{2}}[a-z ]{{5000}}").matcher)


def test_answer_is_a_call_or_follows_the_schema(server: str) -> None:
    mark = post(server, "/tokenize", content="<").json()["tokens"][-1]
    for bias, reason in ((100, "tool_calls"), (-100, "stop")):
        choice = post(server, tools=[COUNT], response_format=FORMAT, logit_bias={str(mark): bias}).json()["choices"][0]
        assert choice["finish_reason"] == reason
        if reason == "stop":
            assert choice["message"]["content"] in ("17", "18")
        else:
            assert 0 <= json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])["n"] <= 9


def test_invalid_schema_of_a_tool_does_not_refuse_an_answer(server: str) -> None:
    tool = {"type": "function", "function": {"name": "count", "parameters": {"type": "object", "properties": {"n": "bad"}}}}
    choice = post(server, tools=[tool], response_format=FORMAT).json()["choices"][0]
    assert choice["message"]["content"] in ("17", "18") or choice["message"]["tool_calls"]
    assert post(server, tools=[tool], tool_choice="required").status_code == 400


@pytest.mark.parametrize("fields, words", [
    ({"tools": [COUNT], "grammar": 'root ::= "17"'}, "gbnf grammar"),
    ({"tools": [COUNT], "json_schema": {"type": "nonsense"}}, "json_schema grammar"),
    ({"tools": [COUNT], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}},
     'tool_choice has the type "allowed_tools", which is not supported'),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, 'tools[0] has the name ""; give a name of letters'),
    ({"tools": [{"type": "function", "function": {"name": 'a"b'}}]}, "tools[0] has the name"),
    ({"functions": [COUNT["function"]]}, "functions is the old form of tools; use tools"),
    ({"messages": USER * 10_001}, "has 10001 messages; the limit is 10000")])
def test_wrong_requests_name_the_problem(server: str, fields: dict[str, Any], words: str) -> None:
    response = post(server, **fields)
    assert response.status_code == 400 and words in response.json()["error"]["message"], response.json()
    assert "\n" not in response.json()["error"]["message"]


def test_bare_calls_exclude_a_schema(new_server: NewServer, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}[{{ m.role }}]"
        "{{ m.content }}{% for c in m.tool_calls or [] %}{\"name\": \"{{ c.function.name }}\", \"parameters\": "
        "{{ c.function.arguments | tojson }}}{% break %}{% endfor %}{% endfor %}[assistant]")
    with new_server(template=str(template)) as url:
        error = post(url, tools=[COUNT], response_format=FORMAT).json()["error"]
        assert error["code"] == 400 and "JSON without a mark" in error["message"]
        assert post(url, tools=[COUNT], tool_choice="none", response_format=FORMAT).status_code == 200


def test_single_call_ends_the_answer(server: str, two_calls: None) -> None:
    for count in (1, 2):
        body = post(server, tools=[COUNT], parallel_tool_calls=False, n=count, logprobs=True).json()
        for choice in body["choices"]:
            assert choice["finish_reason"] == "tool_calls" and len(choice["message"]["tool_calls"]) == 1
            assert choice["message"]["content"] is None
        usage, choices = body["usage"], body["choices"]
        assert usage["completion_tokens"] == sum(len(choice["logprobs"]["content"]) for choice in choices)
        assert usage["prompt_tokens_details"]["cached_tokens"] > 0 or count == 1
    wait_until_idle(server)
    both = post(server, tools=[COUNT], max_tokens=200).json()["choices"][0]
    assert len(both["message"]["tool_calls"]) == 2 and both["finish_reason"] == "length"


def test_single_call_ends_a_stream_and_leaves_the_queue(new_server: NewServer, two_calls: None) -> None:
    with new_server(limits={"queue": 0}, model_flags=["--parallel", "1"]) as url:
        for _ in range(3):
            with httpx.stream("POST", f"{url}/v1/chat/completions", timeout=60, json={
                    "messages": USER, "tools": [COUNT], "parallel_tool_calls": False, "stream": True}) as response:
                assert response.status_code == 200
                lines = [line for line in response.iter_lines() if line]
            choices = [json.loads(line[6:])["choices"][0] for line in lines[:-1]]
            assert choices[-1]["finish_reason"] == "tool_calls" and lines[-1] == "data: [DONE]"
            calls = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
            assert {call["index"] for call in calls} == {0}
        tools = [{"name": "count", "input_schema": PARAMETERS}]
        message = post(url, "/v1/messages", max_tokens=200, tools=tools,
                       tool_choice={"type": "auto", "disable_parallel_tool_use": True}).json()
        assert [block["type"] for block in message["content"]] == ["tool_use"] and message["stop_reason"] == "tool_use"


def test_text_of_messages_is_checked_before_the_template(new_server: NewServer) -> None:
    with new_server(limits={"body_bytes": 64 << 20}) as url:
        long = [{"role": "user", "content": [{"type": "text", "text": "x" * (28 << 20)}]}]
        error = post(url, messages=long).json()["error"]
        assert error["type"] == "exceed_context_size_error" and error["n_ctx"] == 2048
        thoughts = [*USER, {"role": "assistant", "content": "x" * (1 << 19)}, *USER]
        assert post(url, messages=[*USER] * 10_000, max_tokens=1).json()["error"]["type"] == "exceed_context_size_error"
        assert "at least" not in post(url, messages=thoughts, max_tokens=1).json()["error"]["message"]
