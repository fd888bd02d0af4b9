"""Tests of shoal.chat.templates. Some tests use the templates of published models in build/vocabularies/templates.
scripts/reference/vocabularies.py writes them; without them, these tests are skipped."""

import concurrent.futures
import gc
import os
import pathlib
import signal
import sys
import time

import pytest
from shoal.chat.templates import Renderer, TemplateError, default_template, normalise_messages, renderer_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEMPLATES = sorted((ROOT / "build/vocabularies/templates").glob("*.jinja"))
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
HELLO = [{"role": "user", "content": "hello <s>"}]
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
GREEDY = (
    "{% set ns = namespace(l=[]) %}{% for a in range(9999) %}{% set ns.l = ns.l + [('x' * 9000000) ~ a] %}{% endfor %}"
)
# Loops only if the conversation has more than one message.
SOMETIMES = "{% if messages | length > 1 %}" + ENDLESS + "{% endif %}fine"


@pytest.fixture(name="make")
def _make():
    renderers = []

    def make(template, **limits):
        renderers.append(Renderer(template, TOKENS, "model.gguf", **limits))
        return renderers[-1]
    yield make
    for renderer in renderers:
        renderer.close()


def child_of(renderer):
    return renderer._child  # pylint: disable=protected-access


def test_pieces_tell_their_origin(make):
    renderer = make("{{ bos_token }}<|user|>{{ messages[0].content }}{{ eos_token }}")
    assert renderer.render(HELLO) == [("<s><|user|>", True), ("hello <s>", False), ("</s>", True)]


def test_default_template_is_chatml(make):
    messages = [{"role": "system", "content": "Be brief."}, *HELLO]
    text = "".join(piece for piece, _ in make(default_template()).render(messages))
    assert text == ("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhello <s><|im_end|>\n"
                    "<|im_start|>assistant\n")
    without = make(default_template()).render(HELLO, add_generation_prompt=False)
    assert "".join(piece for piece, _ in without) == "<|im_start|>user\nhello <s><|im_end|>\n"


def test_tools_and_variables_reach_the_template(make):
    renderer = make("{{ tools[0].function.name if tools else 'none' }} {{ level | default('default') }}")
    tools = [{"type": "function", "function": {"name": "f"}}]
    texts = ["".join(piece for piece, _ in renderer.render(HELLO, **more))
             for more in ({}, {"tools": tools}, {"tools": []}, {"variables": {"level": "high"}})]
    assert texts == ["none default", "f default", "none default", "none high"]


def test_the_child_stays_and_is_fast(make):
    renderer = make(default_template())
    renderer.render(HELLO)
    child, times = child_of(renderer), []
    for _ in range(50):
        start = time.perf_counter()
        renderer.render(HELLO)
        times.append(time.perf_counter() - start)
    assert child_of(renderer) is child
    assert min(times) < 0.005


def test_conversations_may_exceed_the_buffers_of_pipes(make):
    text = "word " * 400_000
    pieces = make("{{ messages[0].content }}").render([{"role": "user", "content": text}])
    assert pieces == [(text, False)]


def test_a_date_is_current(make):
    text = "".join(piece for piece, _ in make("{{ strftime_now('%Y') }}").render(HELLO))
    assert abs(int(text) - time.localtime().tm_year) <= 1


@pytest.mark.parametrize(
    "template, message",
    [
        ("{% if %}", "is not valid Jinja: "),
        ("{{ 1 / 0 }}", "fails: ZeroDivisionError"),
        ("{{ raise_exception('Roles must\nalternate') }}", "refuses the conversation: Roles must alternate"),
        ("{{ ''.__class__.__mro__ }}", "is not allowed to do this: "),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "is nested too deeply"),
        (
            "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
            "prints more than 16 MiB",
        ),
    ],
)
def test_errors_are_one_line_with_origin_and_remedy(make, template, message):
    with pytest.raises(TemplateError) as caught:
        make(template).render(HELLO)
    text = str(caught.value)
    assert text.startswith("model.gguf: the chat template ") and message in text and text.endswith("--template FILE")
    assert "\n" not in text


def test_an_endless_template_ends_and_the_next_request_works(make):
    renderer = make(SOMETIMES, seconds=0.5)
    assert renderer.render(HELLO) == [("fine", True)]
    child = child_of(renderer)
    start = time.monotonic()
    with pytest.raises(TemplateError, match="did not finish within 0.5 s"):
        renderer.render(HELLO * 2)
    assert time.monotonic() - start < 5
    assert child.poll() == -signal.SIGKILL
    assert renderer.render(HELLO) == [("fine", True)]


def test_a_greedy_template_ends_and_the_next_request_works(make):
    renderer = make(SOMETIMES.replace(ENDLESS, GREEDY), mebibytes=256)
    assert renderer.render(HELLO) == [("fine", True)]
    with pytest.raises(TemplateError, match="takes too much memory"):
        renderer.render(HELLO * 2)
    assert renderer.render(HELLO) == [("fine", True)]


def test_a_killed_child_is_replaced(make):
    renderer = make("fine")
    renderer.render(HELLO)
    os.kill(child_of(renderer).pid, signal.SIGKILL)
    child_of(renderer).wait()
    assert renderer.render(HELLO) == [("fine", True)]


def test_requests_of_many_threads_get_their_own_answers(make):
    renderer = make("{{ messages[0].content }}")
    texts = [f"text {i} " * (i + 1) for i in range(200)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda text: renderer.render([{"role": "user", "content": text}]), texts))
    assert answers == [[(text, False)] for text in texts]


def test_the_child_ends_with_its_renderer():
    with Renderer("fine", {}, "model.gguf") as renderer:
        renderer.render(HELLO)
        closed = child_of(renderer)
    assert closed.returncode is not None
    forgotten = Renderer("fine", {}, "model.gguf")
    forgotten.render(HELLO)
    child = child_of(forgotten)
    del forgotten
    gc.collect()
    assert child.returncode is not None


def test_lone_surrogates_are_replaced(make):
    pieces = make("{{ messages[0].content }}").render([{"role": "user", "content": "a\ud800b"}])
    assert pieces == [("a\ufffdb", False)]


@pytest.mark.skipif(not TEMPLATES, reason="no published templates")
def test_published_templates_render_as_in_one_process():
    sys.path.insert(0, str(renderer_file().parent))
    try:
        import chat_template  # pylint: disable=import-outside-toplevel
    finally:
        sys.path.pop(0)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello <|im_end|>"}]
    rendered = 0
    for path in TEMPLATES[::5]:
        template = path.read_text()
        request = {"template": template, "messages": messages, "add_generation_prompt": True, "special_tokens": TOKENS}
        expected = [tuple(part) for part in chat_template.render(request)]
        with Renderer(template, TOKENS, path.name) as renderer:
            assert renderer.render(messages) == expected, path.name
        rendered += 1
    assert rendered == len(TEMPLATES[::5])


def test_messages_become_text_and_objects():
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = normalise_messages([
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "reasoning_content": "Hm."},
        {"role": "tool", "content": "3", "tool_call_id": "call_1"},
        {"role": "assistant", "content": "", "tool_calls": []}])
    assert messages == [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "a\nb", "name": "Ann"},
        {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "tool", "content": "3", "tool_call_id": "call_1", "name": "f"}, {"role": "assistant", "content": ""}]
    assert normalise_messages([{"role": "developer", "content": "x"}], knows_developer=True)[0]["role"] == "developer"


@pytest.mark.parametrize(
    "messages, error",
    [
        ([], r"messages is \[\]; give a list"),
        ("hello", 'messages is "hello"; give a list'),
        ([3], r"messages\[0\] is 3; give an object"),
        ([{"role": "human", "content": ""}], r'messages\[0\].role is "human"; give one of system'),
        ([{"content": ""}], r"messages\[0\].role is null"),
        ([{"role": ["user"] * 1000, "content": ""}], r"messages\[0\].role is .{60}; give one of"),
        ([{"role": object(), "content": ""}], r"messages\[0\].role is .<object object"),
        ([{"role": "user", "content": 3}], r"messages\[0\].content is 3; give a string or"),
        (
            [
                HELLO[0],
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]},
            ],
            r'messages\[1\].content\[1\] has the type "image_url"',
        ),
        (
            [{"role": "user", "content": [{"type": "input_audio"}]}],
            r'messages\[0\].content\[0\] has the type "input_audio"',
        ),
        ([{"role": "user", "content": [{"type": "file"}]}], r'has the type "file"'),
        ([{"role": "user", "content": [{"type": "text"}]}], r"messages\[0\].content\[0\].text is null"),
        ([{"role": "user", "content": [{"type": {}}]}], r"messages\[0\].content\[0\] has the type {}"),
        ([{"role": "tool", "content": "3", "tool_call_id": None}], r"messages\[0\].tool_call_id is null"),
        ([{"role": "assistant", "tool_calls": {}}], r"messages\[0\].tool_calls is {}; give a list"),
        (
            [{"role": "assistant", "tool_calls": [{"function": "f"}]}],
            r'messages\[0\].tool_calls\[0\].function is "f"; give an object',
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            r"messages\[0\].tool_calls\[0\].function.arguments is not valid JSON",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]}],
            r"arguments is \[\]; give an object",
        ),
        ([{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}], "function.name is null"),
    ],
)
def test_invalid_messages_are_named(messages, error):
    with pytest.raises(ValueError, match=error) as caught:
        normalise_messages(messages)
    assert "\n" not in str(caught.value)
