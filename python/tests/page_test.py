"""Tests of the page at `/` in headless Chromium, against a small server with fixed answers.

`python page_test.py DIRECTORY [URL]` writes the screenshots of the documentation, by default from the fixed answers.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
CHROMEDRIVER = shutil.which("chromedriver")
if __name__ != "__main__":
    pytest.importorskip("selenium", reason="the page is tested with the package selenium")
    if not CHROMIUM or not CHROMEDRIVER:
        pytest.skip("the page is tested with the programs chromium and chromedriver", allow_module_level=True)

from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.remote.webelement import WebElement  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

PAGE = Path(__file__).parents[1] / "shoal/server/page"
POLICY = (
    "default-src 'self'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ATTACK = "<img src=x onerror=window.attacked=1><script>window.attacked=1</script>"
MARKDOWN = f"""# Title

A **bold** word, *emphasis* and `code` {ATTACK}.

1. first
   - inner **one**
   - inner two
2. second

```python
print("<b>")  # {ATTACK}
```

**{ATTACK}**
- {ATTACK}
"""
LONG_LINE = "x" * 300 + " `" + "y" * 300 + "`\n\n```\n" + "z" * 300 + "\n```\n\n| a | " + "b" * 300 + " |\n"
QUESTION = "How are rows divided?"
SHARDING = """A row split gives each device **some rows of each weight**. The shares need not be equal:

1. Each device multiplies its rows with the same input.
   - `CUDA0` has 62 % of the rows.
   - `CUDA1` and `CPU0` have the rest.
2. The results are concatenated or added.

```python
def split(rows: int, shares: list[float]) -> list[int]:
    \"\"\"Rows of each device.\"\"\"
    borders = [round(rows * sum(shares[:i])) for i in range(len(shares) + 1)]
    return [end - begin for begin, end in zip(borders, borders[1:])]
```

The step takes as long as its slowest device, so *shares follow the speed* of the devices.
"""
TEXTS = {"markdown": MARKDOWN, "long": LONG_LINE, "slow": "tick " * 500, "split": "Grüße", QUESTION: SHARDING}
THOUGHT = "The user asks how rows are divided. A short explanation and an example should be enough."


class FakeServer:
    """Serves the page and fixed answers. The last message of the user names the answer."""

    def __init__(self) -> None:
        self.key = ""
        self.status_code = 200
        self.status_calls = 0
        self.bodies: list[dict[str, Any]] = []
        self.cancelled = 0
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/"
        options = {"host": "127.0.0.1", "port": port, "log_level": "critical", "timeout_graceful_shutdown": 1}
        config = uvicorn.Config(self.app(), **options)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join()

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/status", self.status),
                Route("/plan", self.plan),
                Route("/{name:path}", self.file),
            ]
        )

    async def file(self, request: Request) -> Response:
        path = PAGE / (request.path_params["name"] or "index.html")
        if not path.is_file():
            return PlainTextResponse("not found", 404)
        return FileResponse(path, headers={"Content-Security-Policy": POLICY})

    def refusal(self, request: Request) -> Response | None:
        if not self.key or request.headers.get("authorization") == f"Bearer {self.key}":
            return None
        return JSONResponse({"error": {"message": "invalid API key", "type": "authentication_error"}}, 401)

    async def status(self, request: Request) -> Response:
        self.status_calls += 1
        if self.status_code != 200:
            return JSONResponse({"error": {"message": "a device failed"}}, self.status_code)
        return self.refusal(request) or JSONResponse(status_at(self.status_calls))

    async def plan(self, request: Request) -> Response:
        return self.refusal(request) or PlainTextResponse(PLAN)

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        question = body["messages"][-1]["content"]
        if question == "refuse":
            return JSONResponse({"error": {"message": "the prompt has 9000 tokens; the context has 8192"}}, 400)
        return self.refusal(request) or StreamingResponse(self.stream(question), media_type="text/event-stream")

    async def stream(self, question: str) -> AsyncIterator[bytes]:
        try:
            yield b": a comment keeps the connection open\n\n"
            async for event in events(question):
                text = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
                data = f"data: {text}\n\n".encode()
                cut = data.find(b"\xc3") + 1 or 20  # inside of the first two-byte character
                yield data[:cut]
                await asyncio.sleep(0.05 if question == "split" else 0)
                yield data[cut:]
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


async def events(question: str) -> AsyncIterator[dict[str, Any] | str]:
    """The events of one answer: a question selects the delay, the thought, tool calls, errors and the text."""
    yield chunk(role="assistant", content="")
    if question in ("think", QUESTION):
        for word in THOUGHT.split(" "):
            yield chunk(reasoning_content=word + " ")
            await asyncio.sleep(0.02)
    if question == "tool":
        yield chunk(tool_calls=[{"index": 0, "id": "a", "function": {"name": "weather", "arguments": ""}}])
        yield chunk(tool_calls=[{"index": 0, "function": {"arguments": '{"city": '}}])
        yield chunk(tool_calls=[{"index": 0, "function": {"arguments": '"Oslo"}'}}])
    text = TEXTS.get(question, f"Answer to {question}.")
    for position in range(0, len(text), 5):
        yield chunk(content=text[position : position + 5])
        await asyncio.sleep({"slow": 0.05, QUESTION: 0.025}.get(question, 0.002))
        if question == "fail":
            yield {"error": {"message": "device CUDA1 failed: out of memory", "type": "server_error"}}
            yield "[DONE]"
            return
        if question == "break":
            return
    yield chunk(finish="length" if question == "cut" else "stop")
    cached = {"cached_tokens": 1408}
    usage = {"prompt_tokens": 1480, "completion_tokens": len(text) // 5, "prompt_tokens_details": cached}
    yield {"choices": [], "usage": usage}
    yield "[DONE]"


GIB = 1 << 30
PLAN = "example-8b.gguf on 3 device(s), context 8192\nlayouts\n" + "".join(
    f"  blk.{layer}.attn_q.weight    q8_0  [4096, 4096]    split 1 [2560:{{0}} 1280:{{1}} 256:{{2}}]\n"
    for layer in range(32)
)


def status_at(call: int) -> dict[str, Any]:
    """A status that changes with each call. The first device has most of the rows."""
    wave = [0, 0, 31, 38, 42, 40, 41, 27, 12, 0][call // 4 % 10]
    shares = {"CUDA0": (0.62, 24, "24 GiB GPU"), "CUDA1": (0.31, 12, "12 GiB GPU"), "CPU0": (0.07, 64, "16 cores")}
    devices = [
        {
            "name": name,
            "description": description,
            "share": share,
            "weights": int(share * 8 * GIB),
            "cache": int(share * 4 * GIB),
            "compute": int((0.2 + share * 0.5) * GIB),
            "free": int((total * 0.93 - share * 12.5 - 0.2) * GIB),
            "total": total * GIB,
        }
        for name, (share, total, description) in shares.items()
    ]
    size = {"parameters": 8_030_000_000, "bytes": 8 * GIB, "context": 8192}
    return {
        "model": {"name": "example-8b", "architecture": "llama", **size},
        "devices": devices,
        "rates": {"prompt": 900.0 if call % 17 in (3, 4, 5) else 0.0, "generation": wave + call % 3 * 0.7},
        "requests": {"running": 2 + call % 2, "waiting": call % 3, "limit": 16},
        "cache": {"tokens": 32768, "used": 9000 + 64 * call, "hit_rate": 0.62},
        "uptime": 8000 + call,
        "version": "1.0.0",
    }


class Page:
    """A browser with the page. Waiting methods fail after ten seconds."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str, width: int = 1280, height: int = 800) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", **size)
        self.driver.get(url)

    def command(self, name: str, **parameters: Any) -> dict[str, Any]:
        return self.driver.execute_cdp_cmd(name, parameters)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """Text of all matching elements, visible or not."""
        script = "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent).join('\\n')"
        return self.run(script, selector).replace("\u00a0", " ")

    def is_visible(self, selector: str) -> bool:
        return any(node.is_displayed() for node in self.driver.find_elements(By.CSS_SELECTOR, selector))

    def wait(self, condition: Callable[[], Any]) -> None:
        WebDriverWait(self.driver, 10, 0.05).until(lambda _: condition())

    def wait_text(self, selector: str, text: str) -> None:
        try:
            self.wait(lambda: text in self.text(selector))
        except Exception:
            pytest.fail(f"{selector} has {self.text(selector)!r}, not {text!r}")

    def wait_idle(self) -> None:
        self.wait(lambda: self.is_visible("#send"))

    def press(self, *keys: str) -> None:
        """Types into the focused element."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def ask(self, question: str) -> None:
        self.find("#prompt").send_keys(question, Keys.ENTER)

    def ask_and_wait(self, question: str) -> None:
        self.ask(question)
        self.wait_idle()

    def click(self, label: str) -> None:
        self.find_button(label).click()

    def find_button(self, label: str) -> WebElement:
        buttons = self.driver.find_elements(By.CSS_SELECTOR, "button")
        return next(node for node in buttons if node.text == label and node.is_displayed())

    def tab_to(self, label: str) -> None:
        """Presses Tab until the element with this text or name has the focus, and checks that the focus is visible."""
        for _ in range(40):
            self.press(Keys.TAB)
            node = self.driver.switch_to.active_element
            outline = node.value_of_css_property("outline-style")
            if node.tag_name != "body":
                assert outline != "none", f"the focus of {node.text!r} is invisible"
            if label in (node.text, node.get_attribute("name")):
                return
        pytest.fail(f"Tab never reaches {label!r}")

    def overflow(self) -> list[str]:
        """Elements that reach beyond the right edge, except inside elements that scroll."""
        return self.run("""
            const clips = (node) => getComputedStyle(node).overflowX !== "visible";
            const isClipped = (node) => node && (clips(node) || isClipped(node.parentElement));
            const wide = [...document.querySelectorAll("body *")].filter((node) =>
                node.getBoundingClientRect().right > innerWidth + 0.5 && !isClipped(node.parentElement));
            const scrolling = [...document.querySelectorAll("html, body, #log, #panel, dialog")];
            const nodes = [...wide, ...scrolling.filter((node) => node.scrollWidth > node.clientWidth)];
            return nodes.map((node) => node.outerHTML.slice(0, 80));""")

    def problems(self, url: str) -> list[str]:
        """Leaves the page and returns policy violations, script errors, console errors and foreign requests."""
        violations = self.run("return window.violations")
        self.driver.get("about:blank")
        console = [entry["message"] for entry in self.driver.get_log("browser")]
        network = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        requests = [event["params"] for event in network if event["method"] == "Network.requestWillBeSent"]
        urls = [parameters["request"]["url"] for parameters in requests]
        foreign = [address for address in urls if not address.startswith((url, "about:", "data:"))]
        assert urls, "the log has no requests"
        expected = "Failed to load resource: the server responded with a status of"
        return violations + [line for line in console if expected not in line] + foreign


def start_browser() -> webdriver.Chrome:
    """Chromium without its sandbox, which containers lack; it only loads our own page."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(CHROMEDRIVER))
    script = """window.violations = [];
        addEventListener("securitypolicyviolation", (event) => violations.push(event.violatedDirective));
        addEventListener("error", (event) => violations.push(event.message));
        addEventListener("unhandledrejection", (event) => violations.push(String(event.reason)));"""
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
    return driver


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    driver = start_browser()
    yield driver
    driver.quit()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.stop()


@pytest.fixture
def page(browser: webdriver.Chrome, server: FakeServer) -> Iterator[Page]:
    """The page after its first status. Afterwards the test fails if the page caused errors or foreign requests."""
    page = Page(browser)
    page.open(server.url)
    page.wait_text("#model-name", "example-8b")
    yield page
    assert page.problems(server.url) == []


def test_answer_arrives_in_pieces(page: Page) -> None:
    page.ask("slow")
    page.wait_text(".assistant .text", "tick tick")
    assert page.is_visible("#stop") and not page.is_visible("#send")
    assert page.find("#log").get_attribute("aria-busy") == "true"
    length = len(page.text(".assistant .text"))
    page.wait(lambda: len(page.text(".assistant .text")) > length)


def test_events_in_several_pieces_are_joined(page: Page) -> None:
    page.ask_and_wait("split")
    assert page.text(".assistant .text") == "Grüße" and page.text(".assistant .error") == ""


def test_summary_has_rate_and_cached_tokens(page: Page) -> None:
    page.ask_and_wait("hello")
    assert page.text(".assistant .text") == "Answer to hello."
    page.wait_text(".assistant .actions", "3 tokens")
    page.wait_text(".assistant .actions", "tokens/s")
    page.wait_text(".assistant .actions", "1,408 of 1,480 prompt tokens cached")
    assert page.find("#log").get_attribute("aria-busy") == "false"


def test_token_limit_is_named(page: Page) -> None:
    page.ask_and_wait("cut")
    page.wait_text(".assistant .actions", "cut at the token limit")


def test_stop_and_escape_close_the_connection(page: Page, server: FakeServer) -> None:
    for count, stop in enumerate((lambda: page.click("Stop"), lambda: page.press(Keys.ESCAPE)), 1):
        page.ask("slow")
        page.wait_text(".assistant:last-child .text", "tick tick")
        stop()
        page.wait_idle()
        page.wait_text(".assistant:last-child .actions", "stopped")
        page.wait(lambda count=count: server.cancelled == count)


def test_history_is_sent(page: Page, server: FakeServer) -> None:
    page.ask_and_wait("one")
    page.ask_and_wait("two")
    messages = [(message["role"], message["content"]) for message in server.bodies[-1]["messages"]]
    assert messages == [("user", "one"), ("assistant", "Answer to one."), ("user", "two")]
    assert server.bodies[-1]["stream_options"] == {"include_usage": True}


def test_reasoning_is_separate_and_folds(page: Page, server: FakeServer) -> None:
    page.ask_and_wait("think")
    assert page.text(".assistant details pre").strip() == THOUGHT
    assert page.text(".assistant .text") == "Answer to think."
    assert not page.is_visible(".assistant details pre")
    page.find(".assistant summary").click()
    assert page.is_visible(".assistant details pre")
    page.ask_and_wait("next")
    assert THOUGHT[:20] not in json.dumps(server.bodies[-1])


def test_tool_calls_are_shown(page: Page) -> None:
    page.ask_and_wait("tool")
    assert 'weather({"city": "Oslo"})' in page.text(".assistant pre")


def test_markdown_has_no_html_of_the_model(page: Page) -> None:
    page.ask_and_wait("markdown")
    assert page.text(".text h3") == "Title"
    assert page.text(".text p strong").startswith("bold")
    assert page.text(".text em") == "emphasis"
    assert page.text(".text > ul > li > ul > li strong") == "one"
    assert page.run("return [...document.querySelectorAll('.text > ul > li')].map(e => e.value)") == [1, 2, 0]
    assert page.text(".text .code code") == f'print("<b>")  # {ATTACK}'
    assert page.text(".text").count(ATTACK) == 4
    assert not page.driver.find_elements(By.CSS_SELECTOR, "#log img, #log script, #log b")
    assert page.run("return window.attacked === undefined")


def test_copy_button_copies_the_code(page: Page, server: FakeServer) -> None:
    permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    page.command("Browser.grantPermissions", origin=server.url.rstrip("/"), permissions=permissions)
    page.ask_and_wait("markdown")
    page.click("Copy")
    page.wait_text(".code-title button", "Copied")
    read = "navigator.clipboard.readText().then(arguments[0])"
    assert page.driver.execute_async_script(read) == page.text(".text .code code")


@pytest.mark.parametrize(
    ("question", "message", "text"),
    [
        ("refuse", "the prompt has 9000 tokens; the context has 8192", ""),
        ("fail", "device CUDA1 failed: out of memory", "Answe"),
        ("break", "The connection closed before the answer was complete.", "Answe"),
    ],
)
def test_errors_are_shown_and_the_text_is_kept(page: Page, question: str, message: str, text: str) -> None:
    page.ask_and_wait(question)
    page.wait_text(".message .error", message)
    assert page.text(".assistant .text") == text
    page.ask_and_wait("again")
    page.wait_text(".assistant:last-child .text", "Answer to again.")


def test_regenerate_and_edit_replace_the_last_messages(page: Page, server: FakeServer) -> None:
    page.ask_and_wait("one")
    page.ask_and_wait("two")
    page.click("Regenerate")
    page.wait(lambda: len(server.bodies) == 3)
    page.wait_idle()
    assert server.bodies[2]["messages"] == server.bodies[1]["messages"]
    page.click("Edit")
    assert page.find("#prompt").get_property("value") == "two"
    page.press(" changed", Keys.ENTER)
    page.wait_text(".assistant:last-child .text", "Answer to two changed.")
    assert page.text(".user .text") == "one\ntwo changed"


def test_new_chat_stops_and_clears(page: Page, server: FakeServer) -> None:
    page.ask("slow")
    page.wait_text(".assistant .text", "tick")
    page.click("New chat")
    page.wait_idle()
    assert page.text(".message") == "" and page.is_visible("#welcome")
    page.ask_and_wait("hello")
    assert len(server.bodies[-1]["messages"]) == 1


def test_settings_outlive_a_reload_and_are_sent(page: Page, server: FakeServer) -> None:
    page.click("Settings")
    settings = {"system": "Be brief.", "temperature": "0.3", "top_p": "0.9", "max_tokens": "64", "seed": "7"}
    for name, value in settings.items():
        page.find(f"#settings [name={name}]").send_keys(value)
    page.click("Save")
    page.driver.refresh()
    page.ask_and_wait("hello")
    body = server.bodies[-1]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert [body[name] for name in ("temperature", "top_p", "max_tokens", "seed")] == [0.3, 0.9, 64, 7]
    page.click("Settings")
    assert page.find("#settings [name=seed]").get_property("value") == "7"
    page.find("#settings [name=seed]").clear()
    page.press(Keys.ESCAPE)
    page.ask_and_wait("again")
    assert server.bodies[-1]["seed"] == 7


def test_settings_refuse_invalid_numbers(page: Page, server: FakeServer) -> None:
    page.click("Settings")
    page.find("#settings [name=temperature]").send_keys("9", Keys.ENTER)
    assert page.is_visible("#settings-dialog")
    page.click("Cancel")
    page.ask_and_wait("hello")
    assert "temperature" not in server.bodies[-1]


def test_key_is_asked_for_once_and_kept(page: Page, server: FakeServer) -> None:
    server.key = "secret"
    page.wait(lambda: page.is_visible("#key-dialog"))
    page.wait_text("#key-message", "invalid API key")
    page.press("wrong", Keys.ENTER)
    page.wait(lambda: page.is_visible("#key-dialog") and page.find("#key").get_property("value") == "")
    page.press("secret", Keys.ENTER)
    page.ask_and_wait("hello")
    page.wait_text(".assistant .text", "Answer to hello.")
    page.driver.refresh()
    page.wait_text("#model-name", "example-8b")
    assert not page.is_visible("#key-dialog")
    assert page.run("return localStorage.length") == 0


def test_declined_key_stops_the_polling(page: Page, server: FakeServer) -> None:
    server.key = "secret"
    page.wait(lambda: page.is_visible("#key-dialog"))
    page.press(Keys.ESCAPE)
    page.wait_text("#problem", "invalid API key")
    calls = server.status_calls
    time.sleep(2.5)
    assert server.status_calls == calls and not page.is_visible("#key-dialog")
    page.ask("hello")
    page.wait(lambda: page.is_visible("#key-dialog"))
    page.press("secret", Keys.ENTER)
    page.wait_text(".assistant .text", "Answer to hello.")
    page.wait(lambda: page.text("#problem") == "")


def test_server_view_follows_the_status(page: Page, server: FakeServer) -> None:
    assert page.text("#devices h3") == "CUDA062 %\nCUDA131 %\nCPU07 %"
    page.wait_text("#queue-facts", "of 32,768 tokens")
    page.wait_text("#model-facts", "8.03B parameters, 8 GiB")
    widths = "return [...document.querySelectorAll('#share-bar span')].map(e => e.getBoundingClientRect().width)"
    first, second, third = page.run(widths)
    assert first / second == pytest.approx(2, 0.05) and second / third == pytest.approx(31 / 7, 0.05)
    memory = "return document.querySelector('#devices [role=img]').ariaLabel"
    numbers = "weights 4.96 GiB, cache 2.48 GiB, compute 522 MiB, free 14.4 GiB of 24 GiB"
    assert page.run(memory).replace("\u00a0", " ") == f"Memory of CUDA0: {numbers}"
    points = len(page.find("#generation-history").get_attribute("points"))
    used = page.text("#queue-facts")
    page.wait(lambda: len(page.find("#generation-history").get_attribute("points")) > points)
    assert page.text("#queue-facts") != used


def test_polling_slows_down_on_errors_and_recovers(page: Page, server: FakeServer) -> None:
    server.status_code = 503
    page.wait_text("#problem", "a device failed")
    calls = server.status_calls
    time.sleep(3.5)
    assert server.status_calls - calls <= 2
    server.status_code = 200
    page.wait(lambda: page.text("#problem") == "")


def test_hidden_page_does_not_poll(page: Page, server: FakeServer) -> None:
    hide = "Object.defineProperty(document, 'hidden', {value: arguments[0], configurable: true});"
    page.run(hide + "document.dispatchEvent(new Event('visibilitychange'))", True)
    time.sleep(1.5)
    calls = server.status_calls
    time.sleep(2)
    assert server.status_calls == calls
    page.run(hide + "document.dispatchEvent(new Event('visibilitychange'))", False)
    page.wait(lambda: server.status_calls > calls)


def test_plan_is_loaded_on_demand(page: Page) -> None:
    assert page.text("#plan-text") == ""
    page.find("#plan summary").click()
    page.wait(lambda: page.text("#plan-text") == PLAN)


def test_keyboard_reaches_everything(page: Page, server: FakeServer) -> None:
    page.press("two", Keys.SHIFT + Keys.ENTER + Keys.NULL, "lines", Keys.ENTER)
    page.wait_idle()
    assert server.bodies[-1]["messages"][-1]["content"] == "two\nlines"
    page.tab_to("Regenerate")
    page.press(Keys.ENTER)
    page.wait(lambda: len(server.bodies) == 2)
    page.wait_idle()
    page.tab_to("Edit")
    page.press(Keys.ENTER)
    page.press("!", Keys.ENTER)
    page.wait_idle()
    assert server.bodies[-1]["messages"][-1]["content"] == "two\nlines!"
    page.tab_to("Settings")
    page.press(Keys.ENTER)
    page.tab_to("seed")
    page.press("5", Keys.ENTER)
    page.wait(lambda: not page.is_visible("#settings-dialog"))
    page.tab_to("Plan of a token")
    page.press(Keys.ENTER)
    page.wait_text("#plan-text", PLAN[:20])
    page.tab_to("Server")
    page.press(Keys.ENTER)
    assert not page.is_visible("#panel")
    page.tab_to("New chat")
    page.press(Keys.ENTER, "slow", Keys.ENTER)
    page.tab_to("Stop")
    page.press(Keys.ENTER)
    page.wait_text(".assistant .actions", "stopped")
    assert page.driver.switch_to.active_element.get_attribute("id") == "prompt"
    assert server.bodies[-1]["seed"] == 5


def test_answer_does_not_take_the_focus(page: Page) -> None:
    page.ask("slow")
    page.tab_to("Settings")
    page.press(Keys.ESCAPE)
    page.wait_idle()
    assert page.driver.switch_to.active_element.text == "Settings"


def test_controls_have_names(page: Page) -> None:
    page.ask_and_wait("markdown")
    unnamed = page.run("""
        const controls = "button, input, textarea, dialog, aside, main, [role=img], [role=log]";
        return [...document.querySelectorAll(controls)].filter((node) =>
            !(node.textContent.trim() || node.labels?.length || node.ariaLabel || node.getAttribute("aria-labelledby")))
            .map((node) => node.outerHTML);""")
    assert unnamed == []
    assert page.find("#log").get_attribute("aria-live") == "polite"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_page_does_not_scroll_sideways(page: Page, server: FakeServer, scheme: str) -> None:
    page.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.open(server.url, width=360, height=640)
    page.ask_and_wait("long")
    page.ask_and_wait("markdown")
    page.ask_and_wait("w" * 200)
    assert page.is_visible("#chat") and not page.is_visible("#panel") and page.overflow() == []
    page.click("Settings")
    assert page.overflow() == []
    page.click("Cancel")
    page.click("Server")
    page.wait_text("#devices", "CUDA0")
    page.find("#plan summary").click()
    page.wait_text("#plan-text", PLAN[:20])
    assert page.is_visible("#panel") and not page.is_visible("#chat") and page.overflow() == []
    background = page.find("body").value_of_css_property("background-color")
    assert (int(background.split("(")[1].split(",")[0]) < 128) == (scheme == "dark")
    page.command("Emulation.setEmulatedMedia", features=[])


def test_reduced_motion_has_no_animation(page: Page) -> None:
    page.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
    page.ask("slow")
    page.wait_text(".assistant .text", "tick")
    assert page.run("return document.getAnimations().length") == 0
    page.command("Emulation.setEmulatedMedia", features=[])
    page.wait(lambda: page.run("return document.getAnimations({subtree: true}).length") > 0)


def write_screenshots(directory: Path, url: str) -> None:
    """Writes page_chat.png (wide, light) and page_status.png (narrow, dark), small if pngquant is installed."""
    page = Page(start_browser())
    page.open(url, width=1280, height=800)
    page.ask_and_wait(QUESTION)
    time.sleep(40)
    page.driver.save_screenshot(str(directory / "page_chat.png"))
    page.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    page.open(url, width=420, height=1100)
    page.click("Server")
    time.sleep(40)
    page.driver.save_screenshot(str(directory / "page_status.png"))
    page.driver.quit()
    if pngquant := shutil.which("pngquant"):
        images = [directory / "page_chat.png", directory / "page_status.png"]
        subprocess.run([pngquant, "--force", "--ext", ".png", "48", *images], check=True)


if __name__ == "__main__":
    write_screenshots(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else FakeServer().url)
