"""Tests of POST /v1/responses."""
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

WEATHER = {"type": "function", "name": "get_weather", "description": "The weather of a city.", "strict": True,
           "parameters": {"type": "object", "properties": {"city": {"enum": ["Ur", "Nineveh"]}}, "required": ["city"]}}


def post(server: str, path: str = "/v1/responses", **body: Any) -> httpx.Response:
    return httpx.post(server + path, json={"input": "In the beginning", **body}, timeout=60)


def create(server: str, **body: Any) -> dict[str, Any]:
    response = post(server, **{"max_output_tokens": 8, "temperature": 0, **body})
    assert response.status_code == 200, response.text
    return response.json()


def stream(server: str, **body: Any) -> list[dict[str, Any]]:
    """The events of a streamed answer. Their names are equal to their types, and they are numbered."""
    response = post(server, **{"max_output_tokens": 8, "temperature": 0, "stream": True, **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    events = []
    for text in response.text.split("\n\n"):
        lines = [line for line in text.splitlines() if not line.startswith(":")]
        if lines:
            name, data = lines
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == "event: " + events[-1]["type"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def without_ids(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in output]


def collected(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The last response of a stream. Checks that the other events agree with it."""
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:2] == ["created", "in_progress"]
    last = events[-1]["response"]
    assert kinds[-1] == last["status"]
    assert {event["response"]["id"] for event in (*events[:2], events[-1])} == {last["id"]}
    rest = events[2:-1]
    for index, item in enumerate(last["output"]):
        own = [event for event in rest if event["output_index"] == index]
        assert own == rest[:len(own)]
        rest = rest[len(own):]
        check_item(own, item)
    assert not rest
    return last


def check_item(events: list[dict[str, Any]], item: dict[str, Any]) -> None:
    kinds = [event["type"].removeprefix("response.") for event in events]
    added, done = events[0], events[-1]
    assert (kinds[0], kinds[-1]) == ("output_item.added", "output_item.done")
    assert done["item"] == item
    assert added["item"]["status"] == "in_progress"
    assert {event.get("item_id", item["id"]) for event in events} == {added["item"]["id"]} == {item["id"]}
    if item["type"] == "function_call":
        name, text, begin, end = "function_call_arguments", item["arguments"], 1, -2
        assert added["item"]["arguments"] == ""
        assert events[end]["arguments"] == text
    else:
        (part,) = item["content"]
        name, text, begin, end = part["type"], part["text"], 2, -3
        assert added["item"]["content"] == []
        assert (kinds[1], events[1]["part"]) == ("content_part.added", {**part, "text": ""})
        assert (kinds[-2], events[-2]["part"]) == ("content_part.done", part)
        assert {event["content_index"] for event in events[1:-1]} == {0}
        assert events[end]["text"] == text
    assert set(kinds[begin:end]) <= {f"{name}.delta"}
    assert kinds[end] == f"{name}.done"
    assert "".join(event["delta"] for event in events[begin:end]) == text


def test_answer_is_a_response(server: str) -> None:
    response = create(server, metadata={"a": "b"}, instructions="Be brief.")
    assert response["id"].startswith("resp_")
    assert response["object"] == "response"
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    (message,) = response["output"]
    assert message["id"].startswith("msg_")
    assert (message["type"], message["role"], message["status"]) == ("message", "assistant", "incomplete")
    assert message["content"][0]["text"]
    assert (response["metadata"], response["instructions"]) == ({"a": "b"}, "Be brief.")
    assert response["max_output_tokens"] == 8
    usage = response["usage"]
    assert usage["output_tokens"] == 8
    assert usage["total_tokens"] == usage["input_tokens"] + 8
    assert usage["input_tokens_details"].keys() == {"cached_tokens", "cache_write_tokens"}
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}


def test_stream_equals_whole_answer(server: str) -> None:
    whole = create(server)
    last = collected(stream(server))
    assert without_ids(last["output"]) == without_ids(whole["output"])
    assert last["status"] == "incomplete"
    assert last["usage"]["output_tokens"] == 8


def test_complete_answer_is_completed(server: str) -> None:
    form = {"type": "json_schema", "name": "age", "schema": {"enum": [969]}}
    response = create(server, max_output_tokens=400, text={"format": form})
    assert json.loads(response["output"][0]["content"][0]["text"]) == 969
    assert (response["status"], response["incomplete_details"]) == ("completed", None)
    assert response["output"][0]["status"] == "completed"
    assert response["text"]["format"] == form
    assert collected(stream(server, max_output_tokens=400, text={"format": form}))["status"] == "completed"


def test_json_object_is_an_object(server: str) -> None:
    response = create(server, max_output_tokens=4, text={"format": {"type": "json_object"}})
    assert response["output"][0]["content"][0]["text"].lstrip().startswith("{")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_forced_call_is_a_function_call(server: str, choice: Any) -> None:
    body = {"max_output_tokens": 200, "tools": [WEATHER], "tool_choice": choice, "parallel_tool_calls": False}
    response = create(server, **body)
    (call,) = response["output"]
    assert call["id"].startswith("fc_")
    assert (call["type"], call["name"], call["status"]) == ("function_call", "get_weather", "completed")
    assert json.loads(call["arguments"])["city"] in ("Ur", "Nineveh")
    assert call["call_id"]
    assert without_ids(collected(stream(server, **body))["output"]) == without_ids([call])


def test_items_become_messages(server: str, prepared: list[Any]) -> None:
    create(server, instructions="Be brief.", tools=[WEATHER], reasoning={"effort": "low"}, input=[
        {"type": "message", "role": "developer", "content": [
            {"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]},
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Rain?"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{\"city\": \"Ur\"}"},
        {"type": "function_call", "call_id": "c2", "name": "get_weather", "arguments": ""},
        {"type": "function_call_output", "call_id": "c1", "output": "dry"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "wet"}]}])
    assert prepared[-1].messages == [
        {"role": "system", "content": "Be brief.\n\none\ntwo"},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Rain?", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Ur\"}"}},
            {"id": "c2", "type": "function", "function": {"name": "get_weather", "arguments": ""}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "dry"},
        {"role": "tool", "tool_call_id": "c2", "content": "wet"}]
    options = prepared[-1].options
    assert options["variables"] == {"reasoning_effort": "low"}
    assert options["thinks"] is None
    function = {"name": "get_weather", "description": WEATHER["description"], "parameters": WEATHER["parameters"]}
    assert options["tools"] == [{"type": "function", "function": function}]


def test_effort_none_asks_for_no_reasoning(server: str, prepared: list[Any]) -> None:
    create(server, reasoning={"effort": "none"})
    assert prepared[-1].options["thinks"] is False
    assert prepared[-1].options["variables"] == {}


def test_reasoning_is_an_item(server: str, canned: Callable[..., None]) -> None:
    from shoal.chat.format import CallArguments, CallBegin, Content, Reasoning

    canned([Reasoning("Let me ")], [Reasoning("see.")], [Content("\n\n"), Content("Yes.")], [CallBegin(0, "c0", "f")],
           [CallArguments(0, '{"a"'), CallArguments(0, ": 1}")], [CallBegin(1, "c1", "g"), CallArguments(1, "{}")])
    for response in (create(server), collected(stream(server))):
        assert without_ids(response["output"]) == [
            {"type": "reasoning", "status": "completed", "summary": [], "content": [
                {"type": "reasoning_text", "text": "Let me see."}]},
            {"type": "message", "status": "completed", "role": "assistant", "content": [
                {"type": "output_text", "text": "\n\nYes.", "annotations": [], "logprobs": []}]},
            {"type": "function_call", "status": "completed", "name": "f", "arguments": '{"a": 1}'},
            {"type": "function_call", "status": "completed", "name": "g", "arguments": "{}"}]
        assert [item.get("call_id") for item in response["output"]] == [None, None, "c0", "c1"]
        assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}


def test_only_the_last_item_of_a_cut_answer_is_incomplete(server: str, canned: Callable[..., None]) -> None:
    from shoal.chat.format import CallArguments, CallBegin, Content

    canned([Content("I look."), CallBegin(0, "c0", "f"), CallArguments(0, '{"a": [1')], finish="context")
    for response in (create(server), collected(stream(server))):
        assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
        assert response["output"][1]["arguments"] == '{"a": [1'
        assert response["status"] == "incomplete"


def test_empty_answer_has_a_message(server: str, canned: Callable[..., None]) -> None:
    canned([])
    for response in (create(server), collected(stream(server))):
        assert response["output"][0]["content"][0]["text"] == ""
        assert response["status"] == "completed"


def test_late_error_ends_the_response(server: str, canned: Callable[..., None]) -> None:
    from shoal.chat.format import Content
    from shoal.server.errors import ApiError

    canned([Content("In")], error=ApiError(408, "too slow"))
    last = stream(server)[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "too slow", "type": "timeout_error"}
    canned([Content("In")], error=KeyError("secret"))
    assert stream(server)[-1]["response"]["error"]["message"] == "the server failed; see its log"


def test_early_error_has_a_status(server: str, canned: Callable[..., None]) -> None:
    from shoal.server.errors import ApiError

    canned(error=ApiError(429, "64 requests are waiting", retry_after=3))
    response = post(server, stream=True)
    assert response.status_code == 429
    assert response.json()["error"]["type"] == "rate_limit_error"


def call(arguments: Any) -> dict[str, Any]:
    return {"input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": arguments}]}


@pytest.mark.parametrize("body, named", [
    ({"input": None}, "input is null"),
    ({"input": []}, "input is []"),
    ({"input": [3]}, "input[0] is 3"),
    ({"input": [{"role": "tool", "content": "x"}]}, 'input[0].role is "tool"'),
    ({"input": [{"role": "user", "content": 3}]}, "input[0].content is 3"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
     "input[0].content[0] is an image, but image input is not supported"),
    ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, 'has the type "input_file"'),
    ({"input": [{"type": "web_search_call", "id": "x"}]}, 'input[0] has the type "web_search_call"'),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "this server stores nothing"),
    (call("{"), 'input[0].arguments is "{"'),
    (call("[]"), 'input[0].arguments is "[]"'),
    (call("[" * 100000), "input[0].arguments"),
    (call({}), "input[0].arguments is {}"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id is null"),
    ({"previous_response_id": "resp_1"}, "previous_response_id refers to stored data"),
    ({"conversation": "conv_1"}, "conversation refers to stored data"),
    ({"background": True}, "background is true"),
    ({"instructions": 3}, "instructions is 3"),
    ({"tools": [{"type": "function"}]}, "tools[0].name is null"),
    ({"tools": [{"type": "function", "name": "f", "parameters": "x"}]}, 'tools[0].parameters is "x"; give a JSON schema'),
    ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, 'has the type "web_search"'),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "f"}}, 'names the function "f"'),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice is required"),
    ({"tool_choice": "any"}, 'tool_choice is "any"'),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format has no schema"),
    ({"text": {"format": {"type": "xml"}}}, 'text.format has the type "xml"'),
    ({"reasoning": {"effort": 3}}, "reasoning.effort is 3"),
    ({"n": 2}, "n is 2"),
])
def test_wrong_request_is_refused(server: str, body: dict[str, Any], named: str) -> None:
    response = post(server, **{"max_output_tokens": 1, **body})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert named in error["message"]
    assert "\n" not in error["message"]


def test_ignored_fields_are_listed(server: str) -> None:
    tools = [WEATHER, {"type": "web_search"}, {"type": "custom", "name": "apply_patch"}]
    response = post(server, max_output_tokens=1, tools=tools, reasoning={"effort": "low", "summary": "auto"},
                    text={"verbosity": "low"}, include=["reasoning.encrypted_content"], store=False,
                    prompt_cache_key="k", truncation="auto")
    assert response.headers["x-ignored-fields"] == \
        "include, truncation, tools[1] (web_search), tools[2] (custom), text.verbosity, reasoning.summary"
    assert len(response.json()["tools"]) == 1


def test_path_without_version_works(server: str) -> None:
    assert post(server, "/responses", max_output_tokens=1).json()["object"] == "response"


def test_sdk_reads_answers(server: str) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server}/v1", api_key="any", max_retries=0)
    arguments = {"model": "any", "input": [{"role": "user", "content": "In the beginning"}], "max_output_tokens": 200,
                 "temperature": 0, "tools": [WEATHER], "tool_choice": "required"}
    whole = client.responses.create(**arguments)
    with client.responses.stream(**arguments) as streamed:
        final = streamed.get_final_response()
    assert [item.arguments for item in final.output] == [item.arguments for item in whole.output]
    second = client.responses.create(model="any", max_output_tokens=4, tools=[WEATHER], input=[
        *arguments["input"], *(item.model_dump(exclude_none=True) for item in whole.output),
        *({"type": "function_call_output", "call_id": item.call_id, "output": "dry"} for item in whole.output)])
    assert second.output_text
    assert second.usage.output_tokens_details.reasoning_tokens == 0


def test_sdk_types_validate_all_events(server: str, canned: Callable[..., None]) -> None:
    """pydantic checks each member. The SDK itself accepts wrong members."""
    responses = pytest.importorskip("openai.types.responses")
    from pydantic import TypeAdapter
    from shoal.chat.format import CallArguments, CallBegin, Content, Reasoning
    from shoal.server.errors import ApiError

    adapter = TypeAdapter(responses.ResponseStreamEvent)
    batches = [[Reasoning("Hm")], [Content("Yes.")], [CallBegin(0, "c0", "f"), CallArguments(0, "{}")]]
    seen = set()
    for ending in ({}, {"finish": "length"}, {"error": ApiError(500, "broken")}):
        canned(*batches, **ending)
        for event in stream(server, tools=[WEATHER]):
            adapter.validate_python(event)
            seen.add(event["type"])
    assert len(seen) == 15  # created, in_progress, 3 endings, 4 of items and parts, delta and done of 3 kinds
