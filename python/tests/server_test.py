"""The server: OpenAI's chat and text completions, endpoints of llama-server, limits, and protection."""
import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from conftest import NewServer

pytest.importorskip("shoal._shoal", reason="the compiled module is missing; build it first", exc_type=ModuleNotFoundError)

USER = [{"role": "user", "content": "In the beginning"}]
COUNT = {"type": "function", "function": {"name": "count", "parameters": {
    "type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"],
    "additionalProperties": False}}}


def post(url: str, body: Any, **options: Any) -> httpx.Response:
    return httpx.post(url, json=body, timeout=60, **options)


def chunks(url: str, body: Any) -> list[dict[str, Any]]:
    """The events of a stream, which must end with [DONE]."""
    with httpx.stream("POST", url, json={**body, "stream": True}, timeout=60) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def idle(server: str) -> bool:
    requests = httpx.get(f"{server}/status").json()["requests"]
    return requests["running"] + requests["waiting"] == 0


def wait_until_idle(server: str) -> None:
    end = time.monotonic() + 60
    while not idle(server):
        assert time.monotonic() < end, "a request still runs"
        time.sleep(0.02)


def test_chat_stream_has_the_content_of_the_whole_answer(server: str) -> None:
    body = {"messages": USER, "max_tokens": 24, "temperature": 0, "stream_options": {"include_usage": True}}
    whole = post(f"{server}/v1/chat/completions", body).json()
    events = chunks(f"{server}/v1/chat/completions", body)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    content = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
    assert content == whole["choices"][0]["message"]["content"]
    assert events[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 24
    assert len({event["id"] for event in events}) == 1


def test_repeated_prompt_is_cached(server: str) -> None:
    body = {"messages": [{"role": "user", "content": "And it came to pass " * 20}], "max_tokens": 1}
    first, second = (post(f"{server}/v1/chat/completions", body).json()["usage"] for _ in range(2))
    assert first["prompt_tokens_details"]["cached_tokens"] < 64 <= second["prompt_tokens_details"]["cached_tokens"]


def test_choices_differ_and_have_indexes(server: str) -> None:
    body = {"messages": USER, "max_tokens": 16, "n": 3, "seed": 5, "temperature": 1.0}
    choices = post(f"{server}/v1/chat/completions", body).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in choices}) == 3
    texts = ["", "", ""]
    for event in chunks(f"{server}/v1/chat/completions", body):
        for choice in event["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == [choice["message"]["content"] for choice in choices]


def test_logprobs_of_a_chat(server: str) -> None:
    body = {"messages": USER, "max_tokens": 5, "temperature": 0, "logprobs": True, "top_logprobs": 3}
    choice = post(f"{server}/v1/chat/completions", body).json()["choices"][0]
    entries = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == choice["message"]["content"]
    assert all(len(entry["top_logprobs"]) == 3 and entry["logprob"] == entry["top_logprobs"][0]["logprob"] for entry in entries)


def test_forced_tool_call_is_streamed(server: str) -> None:
    body = {"messages": USER, "tools": [COUNT], "tool_choice": "required", "seed": 3}
    call = post(f"{server}/v1/chat/completions", body).json()["choices"][0]
    assert call["finish_reason"] == "tool_calls" and call["message"]["content"] is None
    function = call["message"]["tool_calls"][0]["function"]
    assert function["name"] == "count" and 0 <= json.loads(function["arguments"])["n"] <= 9
    deltas = [delta for event in chunks(f"{server}/v1/chat/completions", body)
              for delta in event["choices"][0]["delta"].get("tool_calls", [])]
    assert deltas[0]["function"]["name"] == "count" and deltas[0]["id"] and all(delta["index"] == 0 for delta in deltas)
    assert "".join(delta["function"]["arguments"] for delta in deltas) == function["arguments"]


@pytest.mark.parametrize("fields", [
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": [17, 18]}}}},
    {"json_schema": {"enum": [17, 18]}}, {"grammar": 'root ::= "17" | "18"'}])
def test_grammars_restrict_answers(server: str, fields: dict[str, Any]) -> None:
    for seed in range(3):
        content = post(f"{server}/v1/chat/completions", {"messages": USER, "seed": seed, **fields}).json()["choices"][0]["message"]["content"]
        assert content in ("17", "18")


def test_completion_echoes_prompt_with_logprobs(server: str) -> None:
    body = {"prompt": "In the beginning God", "max_tokens": 0, "echo": True, "logprobs": 1}
    choice = post(f"{server}/v1/completions", body).json()["choices"][0]
    assert choice["text"] == "In the beginning God" and choice["finish_reason"] == "length"
    logprobs = choice["logprobs"]
    assert logprobs["token_logprobs"][0] == 0 and all(value < 0 for value in logprobs["token_logprobs"][1:])
    assert "".join(logprobs["tokens"][1:]).strip() == "In the beginning God"
    begins = [choice["text"][offset:].lstrip() for offset in logprobs["text_offset"][1:]]
    assert all(text.startswith(token.strip()) for token, text in zip(logprobs["tokens"][1:], begins, strict=True))


def test_echo_with_logprobs_and_grammar(server: str) -> None:
    body = {"prompt": "In the beginning", "echo": True, "logprobs": 1, "grammar": "root ::= [0-9]+", "max_tokens": 4}
    text = post(f"{server}/v1/completions", body).json()["choices"][0]["text"]
    assert text.removeprefix("In the beginning").isdigit()


def test_list_of_prompts_has_a_choice_for_each(server: str) -> None:
    texts = ["And the LORD", "Then said he", "In the beginning"]
    body = {"prompt": texts, "max_tokens": 8, "temperature": 0}
    choices = post(f"{server}/v1/completions", body).json()["choices"]
    single = [post(f"{server}/v1/completions", {**body, "prompt": text}).json()["choices"][0]["text"] for text in texts]
    assert [choice["text"] for choice in choices] == single
    streamed = [""] * 3
    for event in chunks(f"{server}/v1/completions", body):
        streamed[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert streamed == single


def test_stop_string_and_bias(server: str) -> None:
    whole = post(f"{server}/completion", {"prompt": "In the beginning", "n_predict": 16, "temperature": 0}).json()
    assert whole["stop_type"] == "limit" and " the" in whole["content"]
    stopped = post(f"{server}/completion", {"prompt": "In the beginning", "n_predict": 16, "temperature": 0, "stop": " the"}).json()
    assert stopped["content"] == whole["content"].partition(" the")[0] and stopped["stop_type"] == "word"
    biased = post(f"{server}/completion", {"prompt": "In the beginning", "n_predict": 16, "temperature": 0,
                                           "logit_bias": [[" the", False]]}).json()
    assert " the" not in biased["content"]


def test_probabilities_after_sampling_add_up_to_one(server: str) -> None:
    body = {"prompt": "In the", "n_predict": 4, "n_probs": 40, "post_sampling_probs": True, "top_p": 0.8, "min_p": 0}
    for entry in post(f"{server}/completion", body).json()["completion_probabilities"]:
        assert sum(one["prob"] for one in entry["top_probs"]) == pytest.approx(1)
        assert entry["prob"] > 0


def test_tokens_of_a_text_and_back(server: str) -> None:
    tokens = post(f"{server}/tokenize", {"content": "Jesus wept.", "add_special": True}).json()["tokens"]
    assert post(f"{server}/detokenize", {"tokens": tokens}).json() == {"content": "Jesus wept."}
    pieces = post(f"{server}/tokenize", {"content": "ü漢", "with_pieces": True}).json()["tokens"]
    assert all(piece["id"] > 0 and piece["piece"] for piece in pieces)


def test_models_props_slots_and_metrics(server: str) -> None:
    model = httpx.get(f"{server}/v1/models").json()["data"][0]
    assert httpx.get(f"{server}/v1/models/{model['id']}").json() == model
    assert httpx.get(f"{server}/models/{model['id']}").json() == model
    assert httpx.get(f"{server}/v1/models/other").status_code == 404
    assert httpx.get(f"{server}/props").json()["total_slots"] == len(httpx.get(f"{server}/slots").json()) == 8
    text = httpx.get(f"{server}/metrics").text
    assert "llamacpp:tokens_predicted_total" in text and "vllm:time_to_first_token_seconds_bucket" in text
    assert httpx.get(f"{server}/plan").text.startswith("layouts")
    assert [device["name"] for device in httpx.get(f"{server}/status").json()["devices"]] == ["CPU0"]


@pytest.mark.parametrize("body, word", [
    ({"messages": USER, "temperature": "hot"}, "temperature"), ({"messages": USER, "top_p": 2}, "top_p"),
    ({"messages": USER, "n": 1000000}, "n is 1000000"), ({"messages": USER, "max_tokens": 2**40}, "max_tokens"),
    ({"messages": USER, "stop": ["x"] * 100}, "stop"), ({"messages": USER, "logit_bias": {"5000": 1}}, "5000"),
    ({"messages": USER, "logit_bias": {"--5": 1, "9999999999": 1}}, "9999999999"), ({"messages": USER, "temperature": 10**400}, "temperature"),
    ({"messages": USER, "mirostat": 2}, "mirostat"), ({"messages": []}, "messages"), ({}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]}, "image_url"),
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": 5}]}, "tool_call_id"),
    ({"messages": USER, "tools": [{"type": "function"}]}, "tools[0]"),
    ({"messages": USER, "tools": [COUNT], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "other"),
    ({"messages": USER, "tools": [COUNT], "tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format"),
    ({"messages": USER, "response_format": {"type": "json_schema"}}, "schema"), ({"messages": USER, "grammar": "root ::= ("}, "grammar"),
    ({"messages": [{"role": "user", "content": "x" * 30000}]}, "context size")])
def test_wrong_requests_name_the_problem(server: str, body: dict[str, Any], word: str) -> None:
    response = post(f"{server}/v1/chat/completions", body)
    error = response.json()["error"]
    assert response.status_code == 400 and word in error["message"], error
    assert "\n" not in error["message"]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"messages": "\xff"}', b"[" * 100000, b'{"prompt": "\\ud800"}', b'{"prompt": NaN}',
                                  b'{"prompt": "In", "metadata": {"a": 1e999}}', b'{"prompt": "In", "x": [-1E+400]}'])
def test_damaged_bodies_are_refused(server: str, data: bytes) -> None:
    response = httpx.post(f"{server}/v1/completions", content=data)
    assert response.status_code == 400 and response.json()["error"]["message"]


@pytest.mark.parametrize("name, shown", [
    ("web_search_options", "web_search_options"), ("two words", "two words"), (" ", "%20"), (" a  ", "%20a%20%20"), ("", '""'),
    ("a,b%", "a%2Cb%25"), ("a\r\nb: c", "a%0D%0Ab: c"), ("\x00\x7f", "%00%7F"), ("é", "%C3%A9"),
    ("x" * 1000, "x" * 1000), ("x" * 1001, "x" * 997 + "...")])
def test_ignored_fields_with_any_name_are_reported(server: str, name: str, shown: str) -> None:
    response = post(f"{server}/v1/chat/completions", {"messages": USER, "max_tokens": 1, name: 1, "user": "u"})
    assert response.status_code == 200 and response.headers["x-ignored-fields"] == shown


def test_unknown_paths_and_methods(server: str) -> None:
    assert httpx.get(f"{server}/v2/none").json()["error"]["type"] == "not_found_error"
    assert httpx.get(f"{server}/v1/completions").status_code == 405


def test_foreign_host_names_are_refused(server: str) -> None:
    assert httpx.get(f"{server}/health", headers={"Host": "evil.example.org"}).status_code == 403
    assert httpx.get(f"{server}/health", headers={"Host": "localhost:1"}).status_code == 200


def test_other_origins_get_no_permission(server: str, new_server: NewServer) -> None:
    for method in ("GET", "OPTIONS"):
        response = httpx.request(method, f"{server}/health", headers={"Origin": "https://evil.example.org"})
        assert not [name for name in response.headers if name.startswith("access-control")]
    with new_server(cors_origins=["https://good.example.org", "localhost"]) as url:
        for origin, allowed in (("https://good.example.org", True), ("http://localhost:3000", True),
                                ("http://localhost.evil.example.org", False), ("https://evil.example.org", False)):
            headers = httpx.options(f"{url}/v1/models", headers={"Origin": origin}).headers
            assert headers.get("access-control-allow-origin") == (origin if allowed else None)
            assert "access-control-allow-credentials" not in headers


def test_pages_of_other_origins_start_no_work(server: str) -> None:
    data = json.dumps({"prompt": "In", "n_predict": 1}).encode()
    for origin, status in (("https://evil.example.org", 403), ("null", 403), (server, 200), (None, 200)):
        headers = {"Content-Type": "text/plain", **({"Origin": origin} if origin else {})}
        assert httpx.post(f"{server}/completion", content=data, headers=headers).status_code == status


def test_api_key_protects_everything_but_the_page(new_server: NewServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_API_KEY", "secret")
    with new_server() as url:
        for path in ("/", "/health", "/app.js", "/style.css"):
            assert httpx.get(f"{url}{path}").status_code == 200
        for path in ("/v1/models", "/metrics", "/slots", "/props", "/status", "/plan"):
            assert httpx.get(f"{url}{path}").json()["error"]["type"] == "authentication_error"
            assert httpx.get(f"{url}{path}", headers={"Authorization": "Bearer secreT"}).status_code == 401
            assert httpx.get(f"{url}{path}", headers={"Authorization": "Bearer secret"}).status_code == 200
            assert httpx.get(f"{url}{path}", headers={"X-Api-Key": "secret"}).status_code == 200


def test_large_bodies_are_refused(server: str) -> None:
    assert post(f"{server}/v1/completions", {"prompt": "x" * (2 << 20)}).status_code == 413

    def parts() -> Iterator[bytes]:  # without a length
        for _ in range(40):
            yield b"x" * (64 << 10)

    assert httpx.post(f"{server}/v1/completions", content=parts(), timeout=20).status_code == 413


def test_endless_body_is_refused(server: str) -> None:
    host, port = server.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        end = time.monotonic() + 20
        while time.monotonic() < end:
            connection.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        pytest.fail("the server reads the body for ever")


def test_full_queue_answers_429(new_server: NewServer) -> None:
    with new_server(limits={"queue": 1}, model_flags=["--parallel", "1"]) as url:
        body = {"prompt": "In", "n_predict": 1500, "ignore_eos": True}

        async def ask_all() -> list[httpx.Response]:
            async with httpx.AsyncClient(timeout=120) as client:
                return await asyncio.gather(*(client.post(f"{url}/completion", json=body) for _ in range(5)))

        responses = asyncio.run(ask_all())
        statuses = sorted(response.status_code for response in responses)
        assert statuses == [200, 200, 429, 429, 429]
        refused = next(response for response in responses if response.status_code == 429)
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.json()["error"]["type"] == "rate_limit_error"


def test_readers_that_stop_keep_no_place_in_the_queue(new_server: NewServer) -> None:
    with new_server(limits={"queue": 1}, model_flags=["--parallel", "2"]) as url:
        host, port = url.removeprefix("http://").split(":")
        data = json.dumps({"prompt": "In", "n_predict": 900, "ignore_eos": True, "stream": True, "n_probs": 100}).encode()
        readers = []
        for _ in range(3):
            reader = socket.socket()
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect((host, int(port)))
            reader.sendall(b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))
            readers.append(reader)
        time.sleep(0.5)
        wait_until_idle(url)
        for _ in range(3):
            assert post(f"{url}/completion", {"prompt": "And", "n_predict": 2}).status_code == 200
        for reader in readers:
            reader.close()


def test_more_answers_than_the_limit_are_refused(new_server: NewServer) -> None:
    with new_server(limits={"queue": 3}, model_flags=["--parallel", "2"]) as url:
        body = {"prompt": ["a"] * 6, "max_tokens": 1}
        response = post(f"{url}/v1/completions", body)
        assert response.status_code == 400 and "6 answers are more than the limit of 5" in response.json()["error"]["message"]
        assert post(f"{url}/v1/completions", {**body, "prompt": ["a"] * 5}).status_code == 200


def test_long_texts_do_not_block_the_server(server: str) -> None:
    slowest, ends = 0.0, threading.Event()

    def watch() -> None:
        nonlocal slowest
        while not ends.is_set():
            begin = time.monotonic()
            assert httpx.get(f"{server}/health").status_code == 200
            slowest = max(slowest, time.monotonic() - begin)

    watcher = threading.Thread(target=watch)
    watcher.start()
    text = "In the beginning " * 50000
    assert post(f"{server}/v1/completions", {"prompt": text}).json()["error"]["type"] == "exceed_context_size_error"
    assert len(post(f"{server}/tokenize", {"content": text, "with_pieces": True}).json()["tokens"]) > 100000
    ends.set()
    watcher.join()
    assert slowest < 2


def test_late_answers_end_with_408(new_server: NewServer) -> None:
    with new_server(limits={"request_seconds": 0.2}) as url:
        body = {"prompt": "In", "max_tokens": 2000, "ignore_eos": True}
        response = post(f"{url}/v1/completions", body)
        assert response.status_code == 408 and response.headers["x-should-retry"] == "false"
        events = chunks(f"{url}/v1/completions", body)
        assert events[-1]["error"]["type"] == "timeout_error"
        wait_until_idle(url)


def test_limits_of_tokens(new_server: NewServer) -> None:
    with new_server(limits={"answer_tokens": 5, "request_tokens": 40}) as url:
        assert post(f"{url}/completion", {"prompt": "In", "ignore_eos": True}).json()["tokens_predicted"] == 5
        error = post(f"{url}/completion", {"prompt": "In " * 60}).json()["error"]
        assert error["type"] == "exceed_context_size_error" and error["n_ctx"] == 40 < error["n_prompt_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_disconnected_client_ends_its_request(server: str, stream: bool) -> None:
    host, port = server.removeprefix("http://").split(":")
    data = json.dumps({"prompt": "In", "max_tokens": 1900, "ignore_eos": True, "stream": stream}).encode()
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))
        end = time.monotonic() + 10
        while idle(server):
            assert time.monotonic() < end, "the request does not start"
    wait_until_idle(server)


def test_slow_reader_does_not_delay_others(server: str) -> None:
    host, port = server.removeprefix("http://").split(":")
    data = json.dumps({"prompt": "In", "max_tokens": 1500, "ignore_eos": True, "stream": True, "logprobs": 50}).encode()
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect((host, int(port)))
    slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))
    slow.recv(100)  # and no more
    for _ in range(5):
        assert post(f"{server}/completion", {"prompt": "And", "n_predict": 4}).status_code == 200
    slow.close()
    wait_until_idle(server)


def test_slow_body_ends_with_408(new_server: NewServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.server import app

    monkeypatch.setattr(app, "BODY_SECONDS", 0.2)
    with new_server() as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            assert connection.recv(100).startswith(b"HTTP/1.1 408")


def test_failed_device_fails_requests_and_ends_the_server() -> None:
    from shoal.server.backend import Backend
    from shoal.server.errors import ApiError

    backend, failures = object.__new__(Backend), []
    backend.engine, backend.on_failure = SimpleNamespace(failure=lambda: "CPU1 is lost"), failures.append
    with pytest.raises(ApiError, match="CPU1 is lost") as error:
        backend.fail_request("a step failed")
    assert error.value.status == 500 and failures == ["CPU1 is lost"]
    with pytest.raises(ApiError, match="CPU1 is lost") as error:
        backend.admit(1)
    assert error.value.status == 503 and len(failures) == 2
    backend.on_lost_failure("a step failed")
    assert len(failures) == 3


def test_all_endpoints_list_ignored_fields(server: str) -> None:
    for path, body in (("/completion", {"prompt": "In", "n_predict": 1}), ("/tokenize", {"content": "In"}),
                       ("/detokenize", {"tokens": [5]}), ("/apply-template", {"messages": USER}),
                       ("/v1/chat/completions/input_tokens", {"messages": USER}),
                       ("/v1/completions", {"prompt": "In", "max_tokens": 1}),
                       ("/v1/chat/completions", {"messages": USER, "max_tokens": 1}),
                       ("/v1/responses", {"input": "In", "max_output_tokens": 1}),
                       ("/v1/messages", {"messages": USER, "max_tokens": 1}),
                       ("/v1/messages/count_tokens", {"messages": USER})):
        answer = post(f"{server}{path}", {**body, "samplers": ["top_k"], "foo": 1})
        assert answer.status_code == 200 and answer.headers["x-ignored-fields"] == "foo, samplers", path
    for path in ("/tokenize", "/detokenize"):
        assert post(f"{server}{path}", {}).status_code == 400


def test_internal_errors_have_one_form_and_one_entry_in_the_log(
        new_server: NewServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from shoal.server import app, backend, metrics

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a fault")

    with new_server(cors_origins=["http://a.b"]) as url:
        monkeypatch.setattr(backend.Backend, "status", fail)
        monkeypatch.setattr(backend.Backend, "encode", fail)
        monkeypatch.setattr(backend.Backend, "piece", fail)
        monkeypatch.setattr(metrics.Metrics, "text", fail)
        monkeypatch.setattr(app, "PAGE", app.PAGE / "missing")
        requests = [("GET", path, None) for path in ("/", "/app.js", "/status", "/metrics")]
        requests += [("POST", "/tokenize", {"content": "In"}), ("POST", "/v1/completions", {"prompt": "In"})]
        for method, path, body in requests:
            caplog.clear()
            answer = httpx.request(method, f"{url}{path}", json=body, headers={"Origin": "http://a.b"})
            assert answer.status_code == 500 and answer.json()["error"]["type"] == "server_error", path
            assert answer.headers["access-control-allow-origin"] == "http://a.b"
            assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1, path


def test_completion_names_the_stop_string(server: str) -> None:
    body = {"prompt": "In the beginning", "n_predict": 60, "temperature": 0, "stop": ["xyz", " the"]}
    answer = post(f"{server}/completion", body).json()
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", " the")


def test_text_offset_counts_characters(server: str) -> None:
    text = "é€😀 And the"
    logprobs = post(f"{server}/v1/completions", {"prompt": text, "max_tokens": 0, "echo": True, "logprobs": 1}).json()[
        "choices"][0]["logprobs"]
    begins = dict(zip(logprobs["tokens"], logprobs["text_offset"], strict=True))
    assert begins[" And"] == text.index(" And") and begins[" the"] == text.index(" the")


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("stop", [["the LORD Q"], ["zzz", " And the Q"]])
def test_text_offsets_of_streams_equal_those_of_answers(server: str, stop: list[str], echo: bool) -> None:
    for seed in range(6):
        body = {"prompt": "é For the", "max_tokens": 14, "logprobs": 0, "temperature": 1, "seed": seed, "stop": stop, "echo": echo}
        plain = post(f"{server}/v1/completions", body).json()["choices"][0]["logprobs"]
        listed = [event["choices"][0]["logprobs"] for event in chunks(f"{server}/v1/completions", {**body, "stream": True})
                  if event["choices"]]
        for name in ("tokens", "text_offset"):
            assert [value for one in listed if one for value in one[name]] == plain[name]


def test_fields_without_the_usual_value_are_reported(server: str) -> None:
    body = {"prompt": "In", "max_tokens": 1, "cache_prompt": True, "id_slot": -1, "service_tier": "auto", "store": False}
    assert "x-ignored-fields" not in post(f"{server}/v1/completions", body).headers
    body.update(cache_prompt=False, id_slot=3, service_tier="flex", store=True, n_keep=5)
    assert post(f"{server}/v1/completions", body).headers["x-ignored-fields"] == "cache_prompt, id_slot, n_keep, service_tier, store"


def test_only_one_field_restricts_an_answer(server: str) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "grammar": 'root ::= "a"', "response_format": {"type": "json_object"}}
    answer = post(f"{server}/v1/chat/completions", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "grammar and response_format both restrict the answer; omit one of them"


@pytest.mark.parametrize("begin, end", [("<think>", "</think>"), ("<|channel>thought", "<channel|>"), ("<seed:think>", "</seed:think>")])
def test_opened_thoughts_end_before_prefills_and_schemas(new_server: NewServer, tmp_path: Path, begin: str, end: str) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}"
                        f"{{% if add_generation_prompt %}}A: {begin}\n{{% endif %}}")
    with new_server(template=str(template)) as url:
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The answer is"}]
        prompt = post(f"{url}/apply-template", {"messages": messages}).json()["prompt"]
        assert prompt == f"Hi\nA: {begin}\n{end}The answer is"
        body = {"messages": messages[:1], "max_tokens": 300, "temperature": 0,
                "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["Rome"]}}},
                "logit_bias": {}}
        message = post(f"{url}/v1/chat/completions", {**body, "reasoning_effort": "none"}).json()["choices"][0]["message"]
        assert (message["content"], message.get("reasoning_content")) == ('"Rome"', None)


def test_allowed_pages_may_send_and_read_headers(new_server: NewServer) -> None:
    with new_server(cors_origins=["chrome-extension://abc"]) as url:
        headers = httpx.options(f"{url}/v1/models", headers={"Origin": "chrome-extension://abc"}).headers
        assert headers["access-control-allow-headers"] == "Authorization, *"
        assert "X-Ignored-Fields" in headers["access-control-expose-headers"]


def test_header_has_limits(new_server: NewServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.server import connections

    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(connections.Connection, "most", 40)
    with new_server() as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
            for _ in range(100):  # 6 MiB
                connection.sendall(b"a" * 65536)
            pytest.fail("the server reads an endless header")
        for data in (b"", b"GET /health HTTP/1.1\r\n", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea"):
            with socket.create_connection((host, int(port)), timeout=10) as connection:
                connection.sendall(data)
                with contextlib.suppress(ConnectionError):
                    while connection.recv(4096):
                        pass
        many = [socket.create_connection((host, int(port))) for _ in range(60)]
        time.sleep(1.5)
        assert httpx.get(f"{url}/health").status_code == 200
        for connection in many:
            connection.close()


def test_slow_grammar_fails_and_delays_nobody(server: str) -> None:
    grammar = "root ::= s\ns ::= s s s | s s | [a-z ]"
    body = {"prompt": "In the", "max_tokens": 400, "temperature": 1.5, "seed": 1, "grammar": grammar}
    answers: list[httpx.Response] = []
    slow = threading.Thread(target=lambda: answers.append(post(f"{server}/v1/completions", body)))
    begin = time.monotonic()
    slow.start()
    time.sleep(0.2)
    post(f"{server}/v1/completions", {"prompt": "In the", "max_tokens": 300, "ignore_eos": True})
    seconds = time.monotonic() - begin
    slow.join()
    assert seconds < 20
    assert answers[0].status_code == 400 and "use a simpler grammar" in answers[0].text


def test_silent_client_does_not_block_the_server(server: str) -> None:
    host, port = server.removeprefix("http://").split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(50)]
    for connection in silent:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n")
    assert httpx.get(f"{server}/health").status_code == 200
    for connection in silent:
        connection.close()


def test_answers_do_not_depend_on_other_requests(server: str) -> None:
    body = {"messages": USER, "max_tokens": 40, "seed": 11, "temperature": 1.0}
    alone = post(f"{server}/v1/chat/completions", body).json()["choices"][0]["message"]["content"]
    results: list[str] = []

    def ask(index: int) -> None:
        if index % 2:
            post(f"{server}/v1/chat/completions", {**body, "messages": [{"role": "user", "content": f"Psalm {index}" * index}]})
        else:
            results.append(post(f"{server}/v1/chat/completions", body).json()["choices"][0]["message"]["content"])

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [alone] * 6


def test_choices_of_a_stream_end_once(server: str) -> None:
    """The client reads late, so outputs wait in the server."""
    body = {"prompt": ["For", "In"], "n": 2, "max_tokens": 700, "ignore_eos": True, "seed": 1, "logprobs": 100, "stream": True}
    host, port = server.removeprefix("http://").split(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, int(port)))
        data = json.dumps(body).encode()
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                       b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        wait_until_idle(server)
        text = b"".join(iter(lambda: client.recv(65536), b"")).decode()
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    finished: set[int] = set()
    for choice in (choice for event in events for choice in event["choices"]):
        assert choice["index"] not in finished, "an event follows the end of the choice"
        if choice["finish_reason"]:
            finished.add(choice["index"])
    assert finished == {0, 1, 2, 3}


@pytest.mark.parametrize("fields", [{"stream": False}, {"stream": True}])
def test_continued_answer_keeps_its_white_space(server: str, fields: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "code"}, {"role": "assistant", "content": "def f():"}]
    response = post(f"{server}/v1/chat/completions", {"messages": messages, "grammar": 'root ::= "\\n    return 1"', **fields})
    parts = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")] or [response.text]
    choices = [json.loads(part)["choices"][0] for part in parts]
    assert "".join(choice.get("delta", choice.get("message"))["content"] or "" for choice in choices
                   if choice.get("delta") != {}) == "\n    return 1"


TOOL = {"type": "function", "function": {"name": "f", "parameters": {
    "type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}}}


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_inside_a_call_is_no_call(server: str, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL], "tool_choice": "required", "stop": ['"a"']}
    if stream:
        reason = next(event["choices"][0]["finish_reason"] for event in chunks(f"{server}/v1/chat/completions", {**body, "stream": True})
                      if event["choices"] and event["choices"][0]["finish_reason"])
    else:
        reason = post(f"{server}/v1/chat/completions", body).json()["choices"][0]["finish_reason"]
    assert reason == "stop"
    answer = post(f"{server}/v1/messages", {
        "max_tokens": 200, "messages": body["messages"], "tools": [{"name": "f", "input_schema": TOOL["function"]["parameters"]}],
        "tool_choice": {"type": "any"}, "stop_sequences": ['"a"']}).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", '"a"')
    item = post(f"{server}/v1/responses", {"input": "Hi", "tools": [{"type": "function", **TOOL["function"]}],
                                           "tool_choice": "required", "stop": ['"a"']}).json()["output"][-1]
    assert (item["type"], item["status"]) == ("function_call", "incomplete")


def test_cut_begin_of_a_forced_call_is_no_text(server: str) -> None:
    choice = post(f"{server}/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL],
                                                    "tool_choice": "required", "max_tokens": 12}).json()["choices"][0]
    assert choice["finish_reason"] == "length" and not choice["message"]["content"]


def test_stop_string_with_the_first_space_is_named(server: str) -> None:
    first = post(f"{server}/completion", {"prompt": "In the", "n_predict": 1, "seed": 7}).json()["content"]
    assert first.startswith(" ")
    answer = post(f"{server}/completion", {"prompt": "In the", "n_predict": 6, "seed": 7, "stop": [first]}).json()
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", first)
