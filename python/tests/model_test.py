"""The class Model, and the functions that run the program."""
import asyncio
import concurrent.futures
import copy
import gc
import math
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

shoal = pytest.importorskip("shoal", reason="the compiled module is missing; build it first", exc_type=ModuleNotFoundError)

PROMPT = "In the beginning"
GREEDY = {"temperature": 0, "max_tokens": 16}
HAS_ASAN = "libasan" in os.environ.get("LD_PRELOAD", "")


@pytest.fixture(scope="module")
def model(model_path: Path) -> Iterator["shoal.Model"]:
    with shoal.Model(model_path, devices="CPU0,CPU1", tensor_split="3,1", context=2048) as loaded:
        yield loaded


def test_text_equals_text_of_the_program(model: "shoal.Model", model_path: Path) -> None:
    options = {"prompt": PROMPT, "predict": 16, "temp": 0, "devices": "CPU0,CPU1", "tensor_split": "3,1"}
    expected = shoal.program.run("run", "--model", str(model_path), **options)
    completion = model.complete(PROMPT, **GREEDY)
    assert completion.text == expected["text"]
    assert completion.tokens == expected["tokens"]
    assert completion.finish == "length"


def test_pieces_are_the_text(model: "shoal.Model") -> None:
    pieces = list(model.generate(PROMPT, **GREEDY))
    assert "".join(piece.text for piece in pieces) == model.complete(PROMPT, **GREEDY).text
    assert [piece.finish for piece in pieces[:-1]] == [None] * (len(pieces) - 1)


def test_stop_string_ends_the_answer(model: "shoal.Model") -> None:
    whole = model.complete(PROMPT, **GREEDY).text
    assert " the" in whole
    completion = model.complete(PROMPT, stop=" the", **GREEDY)
    assert completion.text == whole[:whole.index(" the")]
    assert completion.finish == "stop"


def test_equal_seeds_give_equal_answers(model: "shoal.Model") -> None:
    first, second, other = (model.complete(PROMPT, seed=seed, temperature=1.0, max_tokens=24).tokens for seed in (7, 7, 8))
    assert first == second != other


def test_logprobs_are_normalised(model: "shoal.Model") -> None:
    size = model.info()["vocabulary"]
    pieces = [piece for piece in model.generate(PROMPT, logprobs=size, **GREEDY) if piece.token >= 0]
    for piece in pieces:
        assert math.isclose(sum(math.exp(value) for _, value in piece.top), 1, rel_tol=1e-4)
        assert dict(piece.top)[piece.token] == piece.logprob == piece.top[0][1]


def test_score_equals_logprobs_of_generation(model: "shoal.Model") -> None:
    completion = model.complete(PROMPT, logprobs=1, **GREEDY)
    prompt = model.tokenize(PROMPT)
    scores = model.score(prompt + completion.tokens)
    assert len(scores) == len(prompt) + len(completion.tokens) - 1
    assert scores[len(prompt) - 1:] == pytest.approx(completion.logprobs, abs=1e-3)


def test_logits_of_a_session_are_views(model: "shoal.Model") -> None:
    np = pytest.importorskip("numpy")
    prompt = model.tokenize(PROMPT)
    session = model.session(256)
    session.evaluate(prompt, outputs=len(prompt))
    logits = session.logits()
    assert logits.shape == (len(prompt), model.info()["vocabulary"]) and logits.dtype == np.float32
    assert not logits.flags.writeable and not logits.flags.owndata
    assert np.shares_memory(logits, session.logits())
    normalised = logits - np.log(np.exp(logits.astype(np.float64)).sum(axis=1, keepdims=True))
    assert [normalised[i, token] for i, token in enumerate(prompt[1:])] == pytest.approx(model.score(PROMPT), abs=1e-3)
    tokens = []
    for _ in range(16):
        tokens.append(int(session.logits()[-1].argmax()))
        session.evaluate(tokens[-1:])
    assert tokens == model.complete(PROMPT, **GREEDY).tokens
    session.rewind(len(prompt))
    assert session.position == len(prompt)
    del session
    gc.collect()
    assert logits[0, 0] == logits[0, 0]  # the array keeps the session alive
    with pytest.raises(ValueError, match="context"):
        model.session(8).evaluate(prompt + prompt)


def test_logits_stay_valid_when_later_logits_need_more_memory(model: "shoal.Model") -> None:
    session = model.session(512)
    session.evaluate([5] * 10, 10)
    logits = session.logits()
    before = logits.copy()
    session.rewind(0)
    session.evaluate([5] * 400, 400)
    assert not np.shares_memory(logits, session.logits()) and np.array_equal(logits, before)


def test_threads_share_a_session(model: "shoal.Model") -> None:
    session = model.session(256)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(session.evaluate, [token]) for token in range(3, 67)]:
            future.result()
    assert session.position == 64 and session.logits().shape == (1, model.info()["vocabulary"])


def test_tokens_of_a_text_give_the_text(model: "shoal.Model") -> None:
    text = "Jesus wept. ü 漢 \U0001f600\n"
    assert model.detokenize(model.tokenize(text)) == text
    assert model.tokenize(text, add_special=False) == model.tokenize(text)[1:]


def test_grammar_restricts_the_answer(model: "shoal.Model") -> None:
    for seed in range(4):
        assert model.complete(PROMPT, grammar=("regex", "[0-9]{3}x"), seed=seed).text[3:] == "x"
    with pytest.raises(ValueError, match="regex grammar is invalid"):
        model.complete(PROMPT, grammar=("regex", "("))


def test_chat_answers_in_the_form_of_openai(model: "shoal.Model") -> None:
    answer = model.chat([{"role": "user", "content": "hello"}], **GREEDY)
    choice = answer["choices"][0]
    assert choice["message"]["role"] == "assistant" and choice["message"]["content"]
    assert answer["usage"]["completion_tokens"] == 16 and choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    again = model.chat([{"role": "user", "content": "hello"}], **GREEDY)
    assert 0 < again["usage"]["prompt_tokens_details"]["cached_tokens"] < again["usage"]["prompt_tokens"]


def test_chat_lists_logprobs(model: "shoal.Model") -> None:
    choice = model.chat([{"role": "user", "content": "hello"}], logprobs=2, **GREEDY)["choices"][0]
    entries = choice["logprobs"]["content"]
    assert len(entries) == 16 and choice["logprobs"]["refusal"] is None
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode(errors="replace") == choice["message"]["content"]
    for entry in entries:
        top = entry.pop("top_logprobs")
        assert len(top) == 2 and top[0] == entry


def test_chat_follows_a_grammar(model: "shoal.Model") -> None:
    question = [{"role": "user", "content": "hello"}]
    assert model.chat(question, grammar=("regex", "[0-9]{3}x"), seed=1)["choices"][0]["message"]["content"][3:] == "x"
    with pytest.raises(ValueError, match="omit one of them"):
        model.chat(question, grammar=("regex", "x"), schema={})


@pytest.mark.parametrize("choice", ["required", "count", {"type": "function", "function": {"name": "count"}}])
def test_chat_calls_a_required_tool(model: "shoal.Model", choice: Any) -> None:
    parameters = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"]}
    tool = {"type": "function", "function": {"name": "count", "parameters": parameters}}
    question = [{"role": "user", "content": "count"}]
    answer = model.chat(question, tools=[tool], tool_choice=choice, seed=1)["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["tool_calls"][0]["function"]["name"] == "count"
    with pytest.raises(ValueError, match="the chat has no tools"):
        model.chat(question, tool_choice=choice)


def test_chat_refuses_wrong_tool_choices(model: "shoal.Model") -> None:
    with pytest.raises(ValueError, match="give none, auto, required or a function"):
        model.chat([{"role": "user", "content": "count"}], tool_choice={"type": "function"})
    with pytest.raises(ValueError, match="other"):
        model.chat([{"role": "user", "content": "count"}], tools=[{"type": "function", "function": {"name": "count"}}],
                   tool_choice={"type": "function", "function": {"name": "other"}})


def test_many_threads_share_a_model(model: "shoal.Model") -> None:
    expected = {text: model.complete(text, **GREEDY).tokens for text in ("And the LORD", "Then said he", PROMPT)}
    results: list[bool] = []

    def ask(text: str) -> None:
        for _ in range(3):
            results.append(model.complete(text, **GREEDY).tokens == expected[text])

    threads = [threading.Thread(target=ask, args=(text,)) for text in expected for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 18


async def test_coroutines_share_a_model(model: "shoal.Model") -> None:
    expected = model.complete(PROMPT, **GREEDY).text

    async def ask() -> str:
        return "".join([piece.text async for piece in model.generate_async(PROMPT, **GREEDY)])

    assert await asyncio.gather(*(ask() for _ in range(6))) == [expected] * 6


async def test_cancelled_coroutine_ends_its_request(model: "shoal.Model") -> None:
    async def ask() -> None:
        async for _ in model.generate_async(PROMPT, temperature=0, ignore_end=True):
            pass

    task = asyncio.create_task(ask())
    async with asyncio.timeout(30):
        while model.stats()["running"] == 0:
            await asyncio.sleep(0.01)
    task.cancel()
    await wait_until_idle(model)


async def test_close_ends_coroutines(model_path: Path) -> None:
    loaded = shoal.Model(model_path, devices="CPU0", context=4096)

    async def ask() -> None:
        async for _ in loaded.generate_async(PROMPT, ignore_end=True):
            pass

    task = asyncio.create_task(ask())
    await asyncio.sleep(0.2)
    await asyncio.to_thread(loaded.close)
    with pytest.raises(RuntimeError, match="closed"):
        await asyncio.wait_for(task, 10)


async def wait_until_idle(model: "shoal.Model") -> None:
    end = time.monotonic() + 10
    while model.stats()["running"] + model.stats()["waiting"] > 0:
        assert time.monotonic() < end, "the request still runs"
        await asyncio.sleep(0.02)


async def test_left_loop_ends_its_request(model: "shoal.Model") -> None:
    for _ in model.generate(PROMPT, temperature=0, ignore_end=True):
        break
    gc.collect()
    await wait_until_idle(model)


def test_errors_are_standard_exceptions(model: "shoal.Model", model_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot open the model file"):
        shoal.Model("/nonexistent.gguf")
    with pytest.raises(ValueError, match="there is no flag --tensor-splat"):
        shoal.Model(model_path, tensor_splat="1,1")
    with pytest.raises(ValueError, match="context holds 2048 tokens"):
        model.complete("x" * 20000)
    with pytest.raises(ValueError, match="top_p"):
        model.complete(PROMPT, top_p=2.0)
    with pytest.raises(TypeError, match="seed is -1"):
        model.complete(PROMPT, seed=-1)
    with pytest.raises(TypeError, match="temprature"):
        model.complete(PROMPT, temprature=1.0)
    with pytest.raises(MemoryError):
        shoal.Model(model_path, devices="CPU0", context=2**30, cache_type_k="f32", cache_type_v="f32")


@pytest.mark.parametrize("call, kind, message", [
    (lambda model: model.tokenize(b"x"), TypeError, "text is .*; give a string"),
    (lambda model: model.tokenize("\ud800"), ValueError, "text has a lone surrogate"),
    (lambda model: model.detokenize("abc"), TypeError, 'tokens is "abc"; give token ids'),
    (lambda model: model.complete(None), TypeError, "prompt is null; give token ids"),
    (lambda model: model.complete([1, 2.5]), TypeError, r"prompt is \[1, 2.5\]; give token ids"),
    (lambda model: model.score([2**40]), ValueError, "prompt has the token 1099511627776"),
    (lambda model: model.complete([1000000]), ValueError, "token 1000000 is not in a vocabulary of 1024 tokens"),
    (lambda model: model.complete("In", grammar="root"), TypeError, 'grammar is "root"; give a kind and a value'),
    (lambda model: model.complete("In", max_tokens="x"), TypeError, "max_tokens is 'x'; give an integer from "),
    (lambda model: model.complete("In", top_k=2**40), TypeError, "top_k is 1099511627776; give an integer from .* to 2147483647"),
    (lambda model: model.complete("In", temperature="x" * 1000), TypeError, "temperature is 'x+[.]{3}x+'; give a number$"),
    (lambda model: model.complete("In", logit_bias=[1]), TypeError, r"logit_bias is \[1\]; give a dict from token ids"),
    (lambda model: model.complete("In", stop=[1]), TypeError, r"stop is \[1\]; give a list of strings"),
    (lambda model: model.chat([{"role": "user"}], logprobs=-1), ValueError, "logprobs is -1; give the number of"),
    (lambda model: model.complete("In", logprobs=False), ValueError, "logprobs is False; give the number of"),
    (lambda model: model.complete("\ud800"), ValueError, "prompt has a lone surrogate"),
    (lambda model: shoal.devices(help=True), TypeError, "there is no option 'help'"),
    (lambda model: shoal.devices(output="table"), TypeError, "there is no option 'output'"),
    (lambda model: model.chat("x"), ValueError, 'messages is "x"; give a list'),
    (lambda model: model.chat([{"role": "user"}], tools={"f": 1}), TypeError, 'tools is {"f": 1}; give a list of dicts'),
    (lambda model: model.chat([{"role": "user"}], tools=["f"]), ValueError, r'tools\[0\] is "f"; give {"type": "function"'),
    (lambda model: model.chat([{"role": "user"}], tools=[{"function": {"name": 5}}]), ValueError, r"tools\[0\] is .*; give"),
    (lambda model: model.chat([{"role": "user"}], tools=[{"function": {"name": "f", "parameters": 5}}]), ValueError,
     r"tools\[0\].function.parameters is 5; give a JSON schema"),
    (lambda model: model.chat([{"role": "user"}], variables=[1]), TypeError, r"variables is \[1\]; give a dict"),
    (lambda model: shoal.Model("\udcff.gguf"), ValueError, "path has a lone surrogate"),
    (lambda model: shoal.Model("a.gguf\0"), ValueError, "path has a NUL character"),
    (lambda model: shoal.Model(b"a.gguf"), TypeError, "path is .*; give a string, a path or a number"),
    (lambda model: shoal.info("a.gguf\0"), ValueError, "model has a NUL character"),
    (lambda model: model.score(b"abc"), TypeError, "prompt is .*; give token ids"),
    (lambda model: model.score([True]), TypeError, r"prompt is \[true\]; give token ids"),
    (lambda model: model.complete("In", stop=5), TypeError, "stop is 5; give a string or a list"),
    (lambda model: model.complete("In", list_prompt=True), TypeError, "there is no option 'list_prompt'"),
])
def test_wrong_arguments_are_named(model: "shoal.Model", call: Callable[["shoal.Model"], object], kind: type[Exception],
                                   message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        call(model)
    assert "\n" not in str(caught.value)


def test_none_is_the_default_of_options(model: "shoal.Model") -> None:
    options = dict.fromkeys(("seed", "stop", "logprobs", "logit_bias", "top_k", "salt"))
    assert model.complete(PROMPT, **GREEDY, **options).tokens == model.complete(PROMPT, **GREEDY).tokens


def test_lists_name_several_devices(model_path: Path) -> None:
    with shoal.Model(model_path, devices=["CPU0", "CPU1"], tensor_split=[3, 1], context=64) as loaded:
        assert [device["name"] for device in loaded.memory()] == ["CPU0", "CPU1"]


def test_threads_with_loops_share_a_model_that_closes(model_path: Path) -> None:
    loaded, errors = shoal.Model(model_path, context=512), []

    async def answer() -> None:
        async for _ in loaded.generate_async("a", max_tokens=1):
            pass

    def work() -> None:
        try:
            while True:
                asyncio.run(answer())
        except Exception as error:  # pylint: disable=broad-exception-caught
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    assert not errors
    loaded.close()
    for thread in threads:
        thread.join(timeout=30)
    assert all(re.search("is closed|was closed|has stopped", str(error)) for error in errors) and len(errors) == 8


def test_arrays_are_token_ids(model: "shoal.Model") -> None:
    tokens = model.tokenize(PROMPT)
    assert model.detokenize(np.array(tokens)) == model.detokenize(tokens)
    assert model.score(np.array(tokens, np.uint16)) == model.score(tokens)


def test_progress_reports_all_bytes_and_can_stop(model_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    shoal.Model(model_path, devices="CPU0", context=512, progress=lambda done, total: seen.append((done, total))).close()
    assert seen[-1][0] == seen[-1][1] > 5_000_000

    def stop(_: int, __: int) -> None:
        raise KeyError("stopped")

    with pytest.raises(KeyError, match="stopped"):
        shoal.Model(model_path, devices="CPU0", context=512, progress=stop)


def test_models_are_not_copied(model: shoal.Model) -> None:
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="a Model cannot be copied or pickled; load the file again"):
            duplicate(model)


def test_closed_model_refuses_requests(model_path: Path) -> None:
    loaded = shoal.Model(model_path, devices="CPU0", context=512)
    pieces = loaded.generate(PROMPT, temperature=0, ignore_end=True)
    next(pieces)
    loaded.close()
    with pytest.raises(RuntimeError, match="closed"):
        list(pieces)
    with pytest.raises(RuntimeError, match="closed"):
        loaded.complete(PROMPT)


def test_fork_refuses_requests(model: "shoal.Model") -> None:
    child = os.fork()
    if child == 0:
        try:
            model.tokenize("x")
        except RuntimeError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_child_process_refuses_sessions_and_exits(model_path: Path) -> None:
    code = f"""if True:
        import os, shoal, signal, sys
        model = shoal.Model({str(model_path)!r}, devices='CPU0,CPU1', context=512)
        session = model.session(64)
        session.evaluate([1])
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            for call in (lambda: session.evaluate([5]), lambda: session.rewind(0), lambda: model.complete('In')):
                try:
                    call()
                except RuntimeError as error:
                    print(error)
            del session
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        session.evaluate([5])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr, len(lines), lines[-1]) == (0, "", 4, "7")
    assert all("a fork has no threads" in line and "in the child process" in line for line in lines[:3])


def interrupt(code: str) -> tuple[str, str, float]:
    """Runs a program, and sends Ctrl-C after its first line. Returns the rest of stdout, stderr and the seconds."""
    # A parent in the background may ignore the signal, and children inherit that.
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert child.stdout is not None
    assert child.stdout.readline() == ".\n"
    begin = time.monotonic()
    child.send_signal(signal.SIGINT)
    output, error = child.communicate(timeout=20)
    return output, error, time.monotonic() - begin


def test_interrupt_stops_generation(model_path: Path) -> None:
    _, error, seconds = interrupt(f"""if True:
        import shoal
        model = shoal.Model({str(model_path)!r}, devices='CPU0', context=100000)
        for piece in model.generate('In', ignore_end=True, temperature=0): print('.', flush=True)
    """)
    assert "KeyboardInterrupt" in error and seconds < 10


def test_interrupt_stops_loading(model_path: Path) -> None:
    output, error, _ = interrupt(f"""if True:
        import shoal, time
        def progress(done, total):
            print('.' if done < total else 'loaded', flush=True)
            time.sleep(0.2)
        shoal.Model({str(model_path)!r}, devices='CPU0', context=512, progress=progress)
    """)
    assert "KeyboardInterrupt" in error and "loaded" not in output


def test_signal_handler_runs_during_a_load_without_progress(model_path: Path, tmp_path: Path,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # without measurements of the devices, which take a second
    early = []

    def stop(*_: object) -> None:
        early.append(not any(tmp_path.rglob("*.json")))
        raise KeyError("alarm")

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyError, match="alarm"):
            shoal.Model(model_path, devices="CPU0,CPU1", tensor_split="auto", context=512)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert early == [True]


@pytest.mark.parametrize("code", [
    "list(model.generate('In', grammar=('regex', '[0-9]+'), max_tokens=4))",
    "threading.Thread(target=lambda: model.complete('In', ignore_end=True), daemon=True).start(); time.sleep(0.3)",
    "next(model.generate('In', ignore_end=True))", "session = model.session(64); session.evaluate([1, 2]); a = session.logits()",
    "work = lambda done, total: [None for _ in range(10**7)]\n"
    "threading.Thread(target=lambda: shoal.Model(model.info()['path'], progress=work), daemon=True).start(); time.sleep(0.2)",
    pytest.param(
        "from shoal import core\ngraph = core.Graph('g')\n"
        "graph.output(graph.add(graph.input('x', 'f32', (3,)), graph.weight('w', 'f32', (3,))))\n"
        "device = core.MetaDevice('CPU0,CPU1', lambda tensor: [None for _ in range(10**7)] and None)\n"
        "threading.Thread(target=lambda: device.compile(graph), daemon=True).start(); time.sleep(0.1)",
        marks=pytest.mark.skipif(HAS_ASAN, reason="AddressSanitizer does not support pthread_exit(), which ends the thread"))])
def test_program_may_exit_without_close(model_path: Path, code: str) -> None:
    program = f"import shoal, threading, time\nmodel = shoal.Model({str(model_path)!r}, devices='CPU0', context=4096)\n{code}\n"
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr


def test_dropped_model_is_freed(model_path: Path) -> None:
    loaded = shoal.Model(model_path, devices="CPU0", context=512)
    loaded.complete(PROMPT, grammar=("regex", "[0-9]{3}"))
    engine = weakref.ref(loaded._submitter)
    del loaded
    gc.collect()
    assert engine() is None


def test_threads_may_close_a_model_together(model_path: Path) -> None:
    loaded = shoal.Model(model_path, devices="CPU0", context=4096)
    reader = threading.Thread(target=lambda: pytest.raises(RuntimeError, loaded.complete, PROMPT, ignore_end=True))
    reader.start()
    time.sleep(0.2)
    threads = [threading.Thread(target=loaded.close) for _ in range(3)] + [threading.Thread(target=loaded.engine.stop)]
    for thread in threads:
        thread.start()
    for thread in [*threads, reader]:
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.skipif(HAS_ASAN, reason="AddressSanitizer takes longer")
def test_import_takes_little_time() -> None:
    code = "import time; begin = time.perf_counter(); import shoal; print(time.perf_counter() - begin)"
    times = [float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) for _ in range(5)]
    assert min(times) < 0.3


def test_probe_measures_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured = shoal.probe(devices="CPU0", dtypes="q8_0", quick=True)
    assert [device["name"] for device in measured["machine"]["devices"]] == ["CPU0"]
    assert Path(measured["file"]).is_relative_to(tmp_path)


def test_functions_return_the_json_of_the_program(model_path: Path) -> None:
    assert "CPU0" in [device["name"] for device in shoal.devices()["devices"]]
    plan = shoal.plan(model_path, devices="CPU0,CPU1", tensor_split="3,1", context=512)
    assert plan["context"] == 512 and [entry["device"] for entry in plan["memory"]] == ["CPU0", "CPU1"]
    assert shoal.info(model_path)
    assert shoal.bench(model_path, devices="CPU0", n_prompt=8, n_gen=4, repetitions=1)
    with pytest.raises(ValueError, match="CPU99"):
        shoal.plan(model_path, devices="CPU99")
