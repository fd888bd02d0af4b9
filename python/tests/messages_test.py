"""Tests of Anthropic's interface: POST /v1/messages and /v1/messages/count_tokens."""
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

HELLO = [{"role": "user", "content": "In the beginning"}]
WEATHER = {"name": "get_weather", "description": "The weather of a city.", "input_schema": {
    "type": "object", "properties": {"city": {"enum": ["Ur", "Nineveh"]}}, "required": ["city"]}}
CALL = [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": [
    {"type": "thinking", "thinking": "He asks for rain.", "signature": ""}, {"type": "text", "text": "I look."},
    {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Ur"}}]}]


def post(server: str, path: str = "/v1/messages", **body: Any) -> httpx.Response:
    body = {"model": "any", "messages": HELLO, **body}
    return httpx.post(server + path, json=body, timeout=60)


def create(server: str, **body: Any) -> dict[str, Any]:
    response = post(server, **{"max_tokens": 8, "temperature": 0, **body})
    assert response.status_code == 200, response.text
    return response.json()


def error_of(response: httpx.Response) -> tuple[int, str, str]:
    body = response.json()
    assert body["type"] == "error"
    assert body.keys() == {"type", "error"}
    return response.status_code, body["error"]["type"], body["error"]["message"]


def stream(server: str, **body: Any) -> list[dict[str, Any]]:
    """The events of a streamed answer. Their names are equal to their types."""
    response = post(server, **{"max_tokens": 8, "temperature": 0, "stream": True, **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    events = []
    for text in response.text.split("\n\n"):
        lines = [line for line in text.splitlines() if not line.startswith(":")]
        if lines:
            name, data = lines
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == "event: " + events[-1]["type"]
    return events


def collected(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The content blocks of a stream. Checks the order of its events."""
    assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    blocks: list[dict[str, Any]] = []
    is_open = False
    for event in events[2:-2]:
        kind = event["type"]
        assert is_open == (kind != "content_block_start")
        if kind == "content_block_start":
            blocks.append({**event["content_block"], "json": ""})
        assert event["index"] == len(blocks) - 1
        if kind == "content_block_delta":
            delta, block = event["delta"], blocks[-1]
            name = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature",
                    "input_json_delta": "json"}[delta["type"]]
            block[name] += delta.get("partial_json", delta.get(name, ""))
        is_open = kind != "content_block_stop"
    assert not is_open
    for block in blocks:
        text = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(text)
    return blocks


def test_answer_has_text_and_usage(server: str) -> None:
    message = create(server)
    assert message["id"].startswith("msg_")
    assert (message["type"], message["role"]) == ("message", "assistant")
    (block,) = message["content"]
    assert block["type"] == "text"
    assert block["text"]
    assert (message["stop_reason"], message["stop_sequence"]) == ("max_tokens", None)
    usage = message["usage"]
    assert usage["output_tokens"] == 8
    assert usage["cache_creation_input_tokens"] == 0


def test_cached_tokens_are_not_input_tokens(server: str) -> None:
    messages = [{"role": "user", "content": "And it came to pass in those days. " * 20}]
    count = post(server, "/v1/messages/count_tokens", messages=messages).json()["input_tokens"]
    create(server, messages=messages)
    usage = create(server, messages=messages)["usage"]
    assert usage["cache_read_input_tokens"] > 0
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == count


def test_stream_equals_whole_answer(server: str) -> None:
    events = stream(server)
    assert collected(events) == create(server)["content"]
    begin, end = events[0]["message"], events[-2]
    assert begin["content"] == []
    assert begin["stop_reason"] is None
    assert begin["usage"]["input_tokens"] > 0
    assert end["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert end["usage"]["output_tokens"] == 8


def test_matched_stop_sequence_is_named(server: str) -> None:
    text = create(server, max_tokens=24)["content"][0]["text"]
    stop = text.split()[2]
    message = create(server, max_tokens=24, stop_sequences=["Zerubbabel", stop])
    assert message["content"][0]["text"] == text[:text.index(stop)]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", stop)
    end = stream(server, max_tokens=24, stop_sequences=[stop])[-2]
    assert end["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": stop}


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_forced_call_is_a_tool_use(server: str, choice: dict[str, str]) -> None:
    body = {"max_tokens": 200, "tools": [WEATHER], "tool_choice": {**choice, "disable_parallel_tool_use": True}}
    message = create(server, **body)
    (block,) = message["content"]
    assert (block["type"], block["name"]) == ("tool_use", "get_weather")
    assert block["input"]["city"] in ("Ur", "Nineveh")
    assert message["stop_reason"] == "tool_use"
    (streamed,) = collected(stream(server, **body))
    assert {**streamed, "id": block["id"]} == block


def test_answer_follows_the_schema(server: str) -> None:
    schema = {"type": "object", "properties": {"age": {"enum": [969]}}, "required": ["age"],
              "additionalProperties": False}
    config = {"format": {"type": "json_schema", "schema": schema}}
    assert json.loads(create(server, max_tokens=500, output_config=config)["content"][0]["text"]) == {"age": 969}


def test_answer_continues_the_last_message_of_the_assistant(server: str, prepared: list[Any]) -> None:
    create(server, messages=[*HELLO, {"role": "assistant", "content": "God created"}])
    assert prepared[-1].prompt.text.endswith("assistant\nGod created")


def test_blocks_become_messages(server: str, prepared: list[Any]) -> None:
    result = {"type": "tool_result", "tool_use_id": "call_1", "is_error": True,
              "content": [{"type": "text", "text": "dry"}]}
    results = {"role": "user", "content": [{"type": "text", "text": "Is it good?"}, result]}
    system = [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=1f;"},
              {"type": "text", "text": "Be brief."}]
    create(server, system=system, messages=[{"role": "system", "content": "No jokes."}, *CALL, results], tools=[WEATHER])
    assert prepared[-1].messages == [
        {"role": "system", "content": "Be brief.\n\nNo jokes."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "He asks for rain.", "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Ur"}}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Error: dry"},
        {"role": "user", "content": "Is it good?"}]
    assert prepared[-1].options["tools"] == [{"type": "function", "function": {
        "name": "get_weather", "description": "The weather of a city.", "parameters": WEATHER["input_schema"]}}]
    assert not prepared[-1].options["continues"]


def test_neighbouring_messages_of_one_role_are_one(server: str, prepared: list[Any]) -> None:
    second = {"role": "user", "content": [{"type": "text", "text": "two"}]}
    create(server, messages=[{"role": "user", "content": "one"}, second])
    assert prepared[-1].messages == [{"role": "user", "content": "one\ntwo"}]


@pytest.mark.parametrize("thinking, effort, thinks, variables", [
    (None, None, None, {}), ({"type": "adaptive"}, "low", None, {"reasoning_effort": "low"}),
    ({"type": "enabled", "budget_tokens": 1024}, "max", True, {"reasoning_effort": "high"}),
    ({"type": "disabled"}, None, False, {})])
def test_thinking_and_effort_reach_the_template(server: str, prepared: list[Any], thinking: Any, effort: Any,
                                                thinks: Any, variables: dict[str, str]) -> None:
    create(server, thinking=thinking, output_config={"effort": effort})
    options = prepared[-1].options
    assert (options["thinks"], options["variables"]) == (thinks, variables)


def test_reasoning_is_a_thinking_block(server: str, canned: Callable[..., None]) -> None:
    from shoal.chat.format import CallArguments, CallBegin, Content, Reasoning

    batches = [[Reasoning("Let me ")], [Reasoning("see."), Content("\n\n")], [Content("Yes.")], [Content("\n")],
               [CallBegin(0, "c0", "f")], [CallArguments(0, '{"a"'), CallArguments(0, ": 1}")], [Content("\n")],
               [CallBegin(1, "c1", "g"), CallArguments(1, "{}")]]
    canned(*batches)
    expected = [{"type": "thinking", "thinking": "Let me see.", "signature": ""},
                {"type": "text", "text": "\n\nYes.\n"},
                {"type": "tool_use", "id": "c0", "name": "f", "input": {"a": 1}},
                {"type": "tool_use", "id": "c1", "name": "g", "input": {}}]
    message = create(server)
    assert message["content"] == expected
    assert message["stop_reason"] == "tool_use"
    assert collected(stream(server)) == expected


def test_cut_call_has_no_input(server: str, canned: Callable[..., None]) -> None:
    from shoal.chat.format import CallArguments, CallBegin

    canned([CallBegin(0, "c0", "f"), CallArguments(0, '{"a": [1, ')], finish="length")
    message = create(server)
    assert message["content"] == [{"type": "tool_use", "id": "c0", "name": "f", "input": {}}]
    assert message["stop_reason"] == "max_tokens"


def test_empty_answer_has_an_empty_text(server: str, canned: Callable[..., None]) -> None:
    canned([])
    assert create(server)["content"] == [{"type": "text", "text": ""}]
    assert collected(stream(server)) == [{"type": "text", "text": ""}]


def test_late_error_is_an_event(server: str, canned: Callable[..., None]) -> None:
    from shoal.chat.format import Content
    from shoal.server.errors import ApiError

    canned([Content("In")], error=ApiError(503, "shutting down"))
    assert stream(server)[-1] == {"type": "error", "error": {"type": "overloaded_error", "message": "shutting down"}}
    canned([Content("In")], error=KeyError("secret"))
    error = {"type": "api_error", "message": "the server failed; see its log"}
    assert stream(server)[-1] == {"type": "error", "error": error}


def test_early_error_has_a_status(server: str, canned: Callable[..., None]) -> None:
    from shoal.server.errors import ApiError

    canned(error=ApiError(429, "64 requests are waiting", retry_after=3))
    response = post(server, max_tokens=8, stream=True)
    assert error_of(response) == (429, "rate_limit_error", "64 requests are waiting")
    assert response.headers["retry-after"] == "3"


def user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


@pytest.mark.parametrize("body, named", [
    ({"max_tokens": None}, "max_tokens is missing"),
    ({"max_tokens": -1}, "max_tokens is -1"),
    ({"messages": []}, "messages is []"),
    ({"messages": None}, "messages is null"),
    ({"messages": [{"role": "tool", "content": "x"}]}, 'messages[0].role is "tool"'),
    ({"messages": [{"role": [], "content": "x"}]}, "messages[0].role is []"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content is 3"),
    (user(3), "messages[0].content[0] is 3"),
    (user({"type": "text"}), "messages[0].content[0].text is null"),
    (user({"type": "image", "source": {}}), "image input is not supported"),
    (user({"type": "document"}), 'has the type "document"'),
    (user({"type": "tool_result"}), "tool_use_id is null"),
    (user({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}),
     "messages[0].content[0].content[0] is an image, but image input is not supported"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]},
     "messages[0].content[0].input is null"),
    ({"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]}, 'has the type "server_tool_use"'),
    ({"system": 3}, "system is 3"),
    ({"tools": [{"name": "a"}]}, "tools[0].input_schema is null"),
    ({"tools": ["a"]}, 'tools[0] is "a"'),
    ({"tool_choice": {"type": "any"}}, "tool_choice is any"),
    ({"tool_choice": {"type": "tool", "name": "b"}, "tools": [WEATHER]}, 'names the tool "b"'),
    ({"tool_choice": {"type": "tool", "name": "web_search"},
      "tools": [{"type": "web_search_20260209", "name": "web_search"}]}, 'names the tool "web_search"'),
    ({"tool_choice": "auto"}, 'tool_choice is "auto"'),
    ({"thinking": {"type": "much"}}, 'thinking has the type "much"'),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format has no schema"),
    ({"n": 2}, "n is 2"),
])
def test_wrong_request_is_refused(server: str, body: dict[str, Any], named: str) -> None:
    status, kind, message = error_of(post(server, **{"max_tokens": 1, **body}))
    assert (status, kind) == (400, "invalid_request_error")
    assert named in message
    assert "\n" not in message


def test_all_errors_have_the_format_of_anthropic(server: str) -> None:
    assert error_of(httpx.post(f"{server}/v1/messages", content="{"))[:2] == (400, "invalid_request_error")
    assert error_of(httpx.get(f"{server}/v1/messages"))[:2] == (405, "invalid_request_error")
    assert error_of(httpx.post(f"{server}/v1/messages/batches", json={}))[:2] == (404, "not_found_error")
    long = [{"role": "user", "content": "word " * 3000}]
    status, kind, message = error_of(post(server, max_tokens=1, messages=long))
    assert (status, kind) == (400, "invalid_request_error")
    assert "context" in message


def test_missing_key_has_the_format_of_anthropic(new_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_API_KEY", "secret")
    with new_server() as url:
        assert error_of(post(url, max_tokens=1))[:2] == (401, "authentication_error")
        assert httpx.post(f"{url}/v1/messages", headers={"x-api-key": "secret"}, json={}).status_code == 400


def test_ignored_fields_are_listed(server: str) -> None:
    tools = [WEATHER, {"type": "web_search_20260209", "name": "web_search"}]
    response = post(server, max_tokens=1, tools=tools, speed="fast", metadata={"user_id": "u"},
                    thinking={"type": "enabled", "budget_tokens": 1024})
    assert response.headers["x-ignored-fields"] == "speed, tools[1] (web_search_20260209), thinking.budget_tokens"


def test_tokens_are_counted(server: str) -> None:
    def count(**body: Any) -> int:
        response = post(server, "/v1/messages/count_tokens", **body)
        assert response.json().keys() == {"input_tokens"}
        return response.json()["input_tokens"]

    plain = count()
    assert 0 < plain < count(system="Be brief.") < count(system="Be brief.", tools=[WEATHER])
    assert count(messages=[{"role": "user", "content": "word " * 3000}]) > 3000  # more than the context


def test_sdk_reads_answers(server: str) -> None:
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=server, api_key="any", max_retries=0)
    arguments = {"model": "any", "max_tokens": 200, "messages": HELLO, "tools": [WEATHER],
                 "tool_choice": {"type": "any"}, "extra_body": {"temperature": 0}}
    whole = client.messages.create(**arguments)
    with client.messages.stream(**arguments) as streamed:
        final = streamed.get_final_message()
    assert [block.type for block in final.content] == [block.type for block in whole.content]
    assert final.content[0].input == whole.content[0].input
    assert final.stop_reason == "tool_use"
    assert final.usage.output_tokens == whole.usage.output_tokens
    with pytest.raises(anthropic.BadRequestError, match="image input is not supported"):
        client.messages.create(model="any", max_tokens=1, messages=[{"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}]}])


def test_sdk_types_validate_all_events(server: str, canned: Callable[..., None]) -> None:
    """pydantic checks each member. The SDK itself accepts wrong members."""
    types = pytest.importorskip("anthropic.types")
    from pydantic import TypeAdapter
    from shoal.chat.format import CallArguments, CallBegin, Content, Reasoning

    adapter = TypeAdapter(types.RawMessageStreamEvent)
    canned([Reasoning("Hm")], [Content("Yes.")], [CallBegin(0, "c0", "f"), CallArguments(0, "{}")])
    for event in stream(server):
        if event["type"] != "ping":  # the SDK skips it before the types
            adapter.validate_python(event)
    TypeAdapter(types.Message).validate_python(create(server))
