"""Tests of models by name, with a hub on this host."""
from __future__ import annotations

import errno
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping

import pytest

from local_hub import LocalHub
from shoal import hub, hub_models

REPOSITORY = "owner/model"
MIB = 1 << 20


def take_interrupts() -> None:
    """A parent in the background may ignore the signal, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Client:
    """Runs `python -m shoal.hub` with a cache of its own."""

    def __init__(self, cache: pathlib.Path, url: str) -> None:
        self.cache = cache
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING_FACE_"))}
        self.environment = {**kept, "HF_HOME": str(cache), "HF_ENDPOINT": url, "NO_PROXY": "127.0.0.1"}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-P", "-m", "shoal.hub", *arguments]

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*arguments), env={**self.environment, **variables}, capture_output=True,
                              text=True, timeout=120, check=False)

    def pull(self, name: str, **variables: str) -> pathlib.Path:
        """Downloads a model without an error and returns the path."""
        done = self.run("pull", name, **variables)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count("\n") == 1
        return pathlib.Path(done.stdout.rstrip("\n"))

    def error(self, *arguments: str, code: int = 1, **variables: str) -> str:
        """The error line of a command that fails."""
        done = self.run(*arguments, **variables)
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr.startswith("shoal: error: ") and done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(self.command(*arguments), env=self.environment, preexec_fn=take_interrupts, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def blobs(self) -> list[pathlib.Path]:
        return [path for path in self.cache.rglob("blobs/*") if path.is_file()]


FILES: Mapping[str, bytes] = {
    "model-Q8_0.gguf": b"8" * 3000,
    "model-Q4_K_M.gguf": b"4" * 2000,
    "model-UD-Q4_K_XL.gguf": b"u" * 2100,
    "BF16/model-BF16-00001-of-00002.gguf": b"first",
    "BF16/model-BF16-00002-of-00002.gguf": b"second",
    "mmproj-F16.gguf": b"images",
    "imatrix.gguf": b"matrix",
    "README.md": b"text",
}


@pytest.fixture
def server() -> Iterator[LocalHub]:
    with LocalHub({REPOSITORY: FILES}) as running:
        yield running


@pytest.fixture
def client(server: LocalHub, tmp_path: pathlib.Path) -> Client:
    return Client(tmp_path / "cache", server.url)


def chosen(files: list[str], quant: str | None = None) -> tuple[str, ...]:
    """The files that are chosen if each file is one byte larger than the file before."""
    return hub_models.choose("o/m", hub_models.models_of({file: 1000 + size for size, file in enumerate(files)}), quant).files


@pytest.mark.parametrize("stem, quant", [
    ("Llama-3.2-1B-Instruct-Q4_K_M", "Q4_K_M"), ("tiny-kjv-5m-q8_0", "Q8_0"), ("model.Q5_K_S", "Q5_K_S"),
    ("ggml-model-f16", "F16"), ("Qwen3-8B-UD-Q4_K_XL", "UD-Q4_K_XL"), ("model_q4_0", "Q4_0"), ("m-IQ2_XXS", "IQ2_XXS"),
    ("gpt-oss-20b-mxfp4", "MXFP4"), ("m-TQ1_0", "TQ1_0"), ("m-Q4_0_4_4", "Q4_0_4_4"), ("BF16/model", "BF16"),
    ("BF16/model-Q8_0", "Q8_0"), ("Q4_0-experiments/model-Q6_K", "Q6_K"), ("m-Q4_K_M-imat", "Q4_K_M"),
    ("m-Q4_K_M_v2", "Q4_K_M"), ("m-Q6_K_L", "Q6_K_L"), ("m-fp16", "FP16"), ("qwen2-7b", ""), ("model", ""), ("Q4", "Q4")])
def test_quantization_of_a_file_name(stem: str, quant: str) -> None:
    assert hub_models.quant_of(stem) == quant


def test_choice_without_quantization_prefers_q4_k_m_then_q4_0_then_the_smallest() -> None:
    assert chosen(["m-Q2_K.gguf", "m-Q4_0.gguf", "m-Q4_K_M.gguf"]) == ("m-Q4_K_M.gguf",)
    assert chosen(["m-Q2_K.gguf", "m-Q4_0.gguf", "m-Q4_K_S.gguf"]) == ("m-Q4_0.gguf",)
    assert chosen(["m-Q6_K.gguf", "m-Q8_0.gguf", "m-UD-Q4_K_M.gguf"]) == ("m-Q6_K.gguf",)
    assert chosen(["model.gguf"]) == ("model.gguf",)


def test_choice_ignores_case_and_folders() -> None:
    files = ["m-Q4_0.gguf", "m-q8_0.gguf", "BF16/m-BF16.gguf"]
    assert chosen(files, "Q8_0") == ("m-q8_0.gguf",)
    assert chosen(files, "q4_0") == ("m-Q4_0.gguf",)
    assert chosen(files, "bf16") == ("BF16/m-BF16.gguf",)


def test_exact_quantization_goes_before_words_of_the_name() -> None:
    files = ["m-UD-Q4_K_XL.gguf", "m-UD-Q4_K_M.gguf", "m-Q4_K_M.gguf"]
    assert chosen(files, "Q4_K_M") == ("m-Q4_K_M.gguf",)
    assert chosen(files, "UD-Q4_K_M") == ("m-UD-Q4_K_M.gguf",)
    assert chosen(files, "Q4_K_XL") == ("m-UD-Q4_K_XL.gguf",)


def test_part_of_a_type_is_no_word() -> None:
    with pytest.raises(hub_models.HubError, match="has no quantization Q4; choose one of Q4_0, Q4_K_M$"):
        chosen(["m-Q4_0.gguf", "m-Q4_K_M.gguf"], "Q4")
    assert chosen(["m-Q4_0_4_4.gguf", "m-Q4_0.gguf"], "Q4_0") == ("m-Q4_0.gguf",)


def test_projectors_and_importance_matrices_are_never_chosen() -> None:
    others = ["mmproj-F16.gguf", "m-mmproj-BF16.gguf", "imatrix.gguf", "m.imatrix.gguf", "imatrix-Q8_0.gguf"]
    assert chosen([*others, "m-F32.gguf"]) == ("m-F32.gguf",)
    for quant in ("F16", "BF16", "Q8_0", "imatrix"):
        with pytest.raises(hub_models.HubError, match="has no quantization"):
            chosen([*others, "m-F32.gguf"], quant)
    assert chosen(["m-imatrix-Q4_0.gguf", "z-Q8_0.gguf"], "Q4_0") == ("m-imatrix-Q4_0.gguf",)


def test_ambiguous_choice_lists_files_and_quantizations() -> None:
    files = ["a-7b-Q4_0.gguf", "b-13b-Q4_0.gguf", "a-7b-Q8_0.gguf"]
    with pytest.raises(hub_models.HubError) as caught:
        chosen(files)
    assert str(caught.value) == ("o/m has 2 models of Q4_0: a-7b-Q4_0, b-13b-Q4_0; name one of these as o/m:FILE, or "
                                 "choose one of Q4_0, Q8_0")
    assert chosen(files, "b-13b-Q4_0") == ("b-13b-Q4_0.gguf",)
    assert chosen(["a-Q4_0.gguf", "a-Q4_0-v2.gguf"], "a-q4_0") == ("a-Q4_0.gguf",)


def test_split_model_needs_all_parts() -> None:
    parts = [f"m-Q8_0-0000{part}-of-00003.gguf" for part in (1, 2, 3)]
    assert chosen([*parts, "m-F16.gguf"], "Q8_0") == tuple(parts)
    with pytest.raises(hub_models.HubError, match="only 2 of the 3 files of m-Q8_0; choose one of F16$"):
        chosen([parts[0], parts[2], "m-F16.gguf"], "Q8_0")


def test_complete_models_go_before_incomplete_ones() -> None:
    part = "m-Q4_K_M-00001-of-00002.gguf"
    assert chosen([part, "m-Q8_0.gguf"]) == ("m-Q8_0.gguf",)
    assert chosen([part, "other-Q4_K_M.gguf"], "Q4_K_M") == ("other-Q4_K_M.gguf",)
    with pytest.raises(hub_models.HubError, match="has no quantization F16; choose one of Q8_0$"):
        chosen([part, "m-Q8_0.gguf"], "F16")
    with pytest.raises(hub_models.HubError, match="only 1 of the 2 files of m-Q4_K_M; name another repository$"):
        chosen([part])


@pytest.mark.parametrize("files", [
    ["m-Q4_0.gguf", "m-Q4_0-00001-of-00002.gguf", "m-Q4_0-00002-of-00002.gguf"], ["m-Q4_0.gguf", "M-q4_0.gguf"],
    ["my model-Q4_0.gguf", "a b/my model-Q4_0.gguf"], ["Q4_0/m.gguf", "Q4_0.gguf", "m-q4_0.gguf"],
    ["m-Q4_0-00001-of-00001.gguf", "m-Q4_0-00001-of-00002.gguf", "m-Q4_0-00002-of-00002.gguf"]])
def test_each_model_has_a_name_that_pull_accepts(files: list[str]) -> None:
    models = hub_models.models_of(dict.fromkeys(files, 1))
    for model in models:
        repository, quant = hub_models.parse_name(f"o/m:{hub_models.selector(model, models)}")
        assert hub_models.choose(repository, models, quant) == model


def test_sizes_of_split_models_add_up() -> None:
    files = {"a-Q8_0-00001-of-00002.gguf": 60, "a-Q8_0-00002-of-00002.gguf": 60, "a-F16.gguf": 100}
    assert hub_models.choose("o/m", hub_models.models_of(files), None).files == ("a-F16.gguf",)


def test_pull_prints_the_path_of_the_file(server: LocalHub, client: Client) -> None:
    assert client.pull(REPOSITORY).read_bytes() == FILES["model-Q4_K_M.gguf"]
    assert client.pull(f"{REPOSITORY}:q8_0").read_bytes() == FILES["model-Q8_0.gguf"]
    assert client.pull(f"{REPOSITORY}:Q4_K_XL").read_bytes() == FILES["model-UD-Q4_K_XL.gguf"]
    assert not server.downloads("mmproj-F16.gguf") + server.downloads("imatrix.gguf") + server.downloads("README.md")


def test_pull_of_a_split_model_downloads_all_parts(client: Client) -> None:
    first = client.pull(f"{REPOSITORY}:bf16")
    assert first.name == "model-BF16-00001-of-00002.gguf"
    second = first.with_name("model-BF16-00002-of-00002.gguf")
    assert (first.read_bytes(), second.read_bytes()) == (b"first", b"second")


def test_second_pull_downloads_nothing(server: LocalHub, client: Client) -> None:
    assert client.pull(REPOSITORY) == client.pull(REPOSITORY)
    assert len(server.downloads("model-Q4_K_M.gguf")) == 1


def test_json_output_contains_path_or_error(client: Client) -> None:
    done = client.run("pull", REPOSITORY, "--output", "json", "--no-progress")
    assert (done.returncode, done.stderr) == (0, "")
    assert pathlib.Path(json.loads(done.stdout)["path"]).read_bytes() == FILES["model-Q4_K_M.gguf"]
    done = client.run("pull", "owner/missing", "--output", "json")
    assert (done.returncode, done.stderr) == (1, "")
    assert "has no repository owner/missing" in json.loads(done.stdout)["error"]


def test_python_function_returns_the_path(server: LocalHub, tmp_path: pathlib.Path) -> None:
    client = Client(tmp_path, server.url)
    script = "import shoal.hub; print(shoal.hub.pull('owner/model', progress=False).read_bytes()[:1])"
    done = subprocess.run([sys.executable, "-P", "-c", script], env=client.environment, capture_output=True, text=True,
                          check=True)
    assert done.stdout == "b'4'\n"


def script_of(server: LocalHub, cache: pathlib.Path, code: str) -> subprocess.Popen[str]:
    """Runs code that imports the package. Ctrl-C has its usual meaning."""
    return subprocess.Popen([sys.executable, "-P", "-c", code], env=Client(cache, server.url).environment, text=True,
                            preexec_fn=take_interrupts, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_package_uses_models_by_name(model_path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    code = """if True:
        import shoal
        name = "owner/model:Q4_0"
        print(shoal.Model(hf_repo=name, devices="CPU0", context=64).complete("In the", max_tokens=2).finish)
        print(shoal.info(hf_repo=name)["model"] == str(shoal.hub.pull(name)), shoal.plan(hf_repo=name)["context"])
        for wrong in ({}, {"hf_repo": name, "model": "m.gguf"}):
            try:
                shoal.info(**wrong)
            except TypeError as error:
                print(error)
        try:
            shoal.Model(hf_repo="owner/missing")
        except ValueError as error:
            print(error)
    """
    with LocalHub({REPOSITORY: {"m-Q4_0.gguf": model_path.read_bytes()}}) as server:
        output, error = script_of(server, tmp_path, code).communicate(timeout=100)
    lines = output.splitlines()
    assert lines[:2] == ["length", "True 512"], error
    assert lines[2:4] == ['give either model, a GGUF file, or hf_repo="OWNER/REPO:QUANT"'] * 2
    assert "has no repository owner/missing" in lines[4]


def test_interrupted_download_of_a_model_leaves_the_package_usable(model_path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    code = """if True:
        import shoal
        try:
            shoal.Model(hf_repo="owner/model", devices="CPU0", context=64)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        input()
        shoal.Model(hf_repo="owner/model", devices="CPU0", context=64).close()
        shoal.Model(hf_repo="owner/model", devices="CPU0", context=64, progress=lambda done, total: print("again", flush=True))
    """
    with LocalHub({REPOSITORY: {"m-Q4_0.gguf": model_path.read_bytes()}}) as server:
        server.delay = 1
        for number in (signal.SIGTERM, signal.SIGINT):
            child = script_of(server, tmp_path, code)
            before, deadline = len(server.downloads("m-Q4_0.gguf")), time.monotonic() + 60
            while len(server.downloads("m-Q4_0.gguf")) == before and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(0.2)
            child.send_signal(number)
            if number == signal.SIGTERM:
                child.communicate(timeout=30)
                assert child.returncode == -signal.SIGTERM
        assert child.stdout.readline() == "interrupted\n"
        server.delay = 0
        output, error = child.communicate("go\n", timeout=60)
        assert child.returncode == 0 and "again" in output, error


def test_broken_connection_is_resumed(tmp_path: pathlib.Path) -> None:
    # huggingface_hub writes chunks of 10 MiB, so only whole chunks survive a broken connection.
    data = os.urandom(25 * MIB)
    with LocalHub({REPOSITORY: {"m-Q4_0.gguf": data}}) as server:
        server.breaks = [15 * MIB, 12 * MIB]
        assert Client(tmp_path, server.url).pull(REPOSITORY).read_bytes() == data
        assert server.downloads("m-Q4_0.gguf") == ["", f"bytes={10 * MIB}-", f"bytes={20 * MIB}-"]


def test_offline_mode_uses_the_cache_without_requests(server: LocalHub, client: Client) -> None:
    path = client.pull(f"{REPOSITORY}:Q8_0")
    server.requests.clear()
    assert client.pull(f"{REPOSITORY}:q8_0", HF_HUB_OFFLINE="1") == path
    assert client.pull(REPOSITORY, HF_HUB_OFFLINE="1") == path
    line = client.error("pull", f"{REPOSITORY}:Q4_K_M", HF_HUB_OFFLINE="1")
    assert "owner/model is not in the cache" in line and line.endswith("unset HF_HUB_OFFLINE\n")
    assert not server.requests


def test_cache_is_used_while_the_hub_cannot_be_reached(server: LocalHub, client: Client) -> None:
    path = client.pull(f"{REPOSITORY}:Q8_0")
    server.status = 503
    assert client.pull(f"{REPOSITORY}:Q8_0") == path
    assert "answered owner/model with status 503; try again later" in client.error("pull", f"{REPOSITORY}:BF16")
    server.__exit__(None, None, None)
    assert client.pull(f"{REPOSITORY}:Q8_0") == path
    assert f"{server.url} cannot be reached (" in client.error("pull", "owner/other")


def test_incomplete_split_model_in_the_cache_is_not_used(server: LocalHub, client: Client) -> None:
    first = client.pull(f"{REPOSITORY}:BF16")
    first.with_name("model-BF16-00002-of-00002.gguf").unlink()
    assert "is not in the cache" in client.error("pull", f"{REPOSITORY}:BF16", HF_HUB_OFFLINE="1")
    assert json.loads(client.run("list", "--output", "json").stdout)["models"] == []
    assert client.pull(f"{REPOSITORY}:BF16") == first


def test_models_of_earlier_commits_remain_usable(server: LocalHub, client: Client) -> None:
    old = client.pull(f"{REPOSITORY}:Q8_0")
    server.repositories = {REPOSITORY: {**FILES, "model-Q4_K_M.gguf": b"a new commit"}}
    new = client.pull(f"{REPOSITORY}:Q4_K_M")
    assert new.parent != old.parent
    paths = {"owner/model:Q4_K_M": str(new), "owner/model:Q8_0": str(old)}
    listed = json.loads(client.run("list", "--output", "json").stdout)["models"]
    assert {model["name"]: model["path"] for model in listed} == paths
    assert {name: str(client.pull(name, HF_HUB_OFFLINE="1")) for name in paths} == paths


def test_parts_come_from_one_commit(server: LocalHub, client: Client) -> None:
    """The repository changes between the downloads of the first and of the second part."""
    second = "BF16/model-BF16-00002-of-00002.gguf"
    server.change_after = ("BF16/model-BF16-00001-of-00002.gguf", {REPOSITORY: {**FILES, second: b"of another commit"}})
    first = client.pull(f"{REPOSITORY}:BF16")
    assert (first.parent / pathlib.Path(second).name).read_bytes() == b"second"


def test_cached_files_of_earlier_commits_need_no_space(server: LocalHub, client: Client) -> None:
    data = bytes(MIB)
    server.repositories = {REPOSITORY: {"m-Q4_0.gguf": data}}
    client.pull(REPOSITORY)
    server.repositories = {REPOSITORY: {"m-Q4_0.gguf": data, "README.md": b"a new commit"}}
    script = ("import collections, shutil, sys\nfrom shoal import hub\n"
              "shutil.disk_usage = lambda _: collections.namedtuple('Usage', 'free')(1000)\nsys.exit(hub.main())")
    done = subprocess.run([sys.executable, "-P", "-c", script, "pull", REPOSITORY], env=client.environment,
                          capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_damaged_repositories_do_not_hide_others(client: Client) -> None:
    kept = client.pull(f"{REPOSITORY}:Q8_0")
    first = kept.parent.parent.parent
    damage: dict[str, Callable[[pathlib.Path], object]] = {
        "empty-refs": lambda folder: (folder / "refs/main").write_bytes(b""),
        "strange-refs": lambda folder: (folder / "refs/main").write_bytes(b"\xff\xfe"),
        "no-refs": lambda folder: shutil.rmtree(folder / "refs"),
        "dangling": lambda folder: (folder / "snapshots" / kept.parent.name / "gone-Q4_0.gguf").symlink_to("../../blobs/0"),
    }
    for name, change in damage.items():
        folder = first.with_name(f"models--owner--{name}")
        shutil.copytree(first, folder, symlinks=True)
        change(folder)
    blobless = first.with_name("models--owner--blobless")
    shutil.copytree(first, blobless, symlinks=True)
    shutil.rmtree(blobless / "blobs")
    (first.with_name("models--owner--file")).write_text("a file")
    (first.with_name("models--owner--loop") / "snapshots").mkdir(parents=True)
    loop = first.with_name("models--owner--loop") / "snapshots" / "x-Q4_0.gguf"
    loop.symlink_to(loop)
    done = client.run("list", "--output", "json")
    assert done.returncode == 0
    assert [model["name"] for model in json.loads(done.stdout)["models"]] == sorted(
        f"owner/{name}:Q8_0" for name in ("model", *damage))
    for name in damage:
        assert client.pull(f"owner/{name}:Q8_0", HF_HUB_OFFLINE="1").read_bytes() == FILES["model-Q8_0.gguf"]


def test_repository_that_cannot_be_read_is_a_warning(client: Client, monkeypatch: pytest.MonkeyPatch,
                                                     caplog: pytest.LogCaptureFixture) -> None:
    path = client.pull(f"{REPOSITORY}:Q8_0")
    (client.cache / "hub/models--owner--locked/snapshots").mkdir(parents=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(client.cache / "hub"))
    listed = pathlib.Path.iterdir

    def iterdir(folder: pathlib.Path) -> Iterator[pathlib.Path]:  # the permissions of files do not bind root
        if "models--owner--locked" in str(folder):
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return listed(folder)

    monkeypatch.setattr(pathlib.Path, "iterdir", iterdir)
    assert [model.path for model in hub.cached_models()] == [path]
    assert re.search("models--owner--locked cannot be read: Permission denied", caplog.text)


def test_tokens_that_no_request_can_contain_are_named(client: Client) -> None:
    for token in ("hf_ä", "hf_1\x01"):
        line = client.error("pull", REPOSITORY, HF_TOKEN=token)
        assert "the token in HF_TOKEN has characters that no token has; correct it" in line
    client.cache.mkdir(exist_ok=True)
    (client.cache / "token").write_bytes(b"\xff\xfe")
    line = client.error("pull", REPOSITORY)
    assert f"the token in {client.cache}/token cannot be read" in line and "hf auth login" in line


def test_token_opens_gated_and_private_repositories(server: LocalHub, client: Client) -> None:
    server.token, server.gated = "hf_secret", {REPOSITORY}
    line = client.error("pull", REPOSITORY)
    assert f"owner/model is gated; accept its terms at {server.url}/owner/model, and set HF_TOKEN" in line
    assert "refuses the token for owner/model; check HF_TOKEN" in client.error("pull", REPOSITORY, HF_TOKEN="hf_wrong")
    assert client.pull(REPOSITORY, HF_TOKEN="hf_secret").read_bytes() == FILES["model-Q4_K_M.gguf"]
    server.private = {REPOSITORY}
    assert "or it is private; check the name, or set HF_TOKEN" in client.error("pull", REPOSITORY)
    assert client.pull(f"{REPOSITORY}:Q8_0", HF_TOKEN="hf_secret").read_bytes() == FILES["model-Q8_0.gguf"]


def test_missing_models_are_one_line(tmp_path: pathlib.Path) -> None:
    with LocalHub({"owner/text": {"README.md": b"x", "mmproj-F16.gguf": b"y"}, "owner/one": {"m-Q8_0.gguf": b"z"}}) as server:
        client = Client(tmp_path, server.url)
        assert "has no repository owner/missing" in client.error("pull", "owner/missing")
        assert "owner/text contains no GGUF model; name a repository with GGUF" in client.error("pull", "owner/text")
        assert "owner/one has no quantization Q4_0; choose one of Q8_0" in client.error("pull", "owner/one:Q4_0")
        assert "'owner' is not OWNER/REPO or OWNER/REPO:QUANT" in client.error("pull", "owner")
        assert "is not the name of a repository" in client.error("pull", "owner/a..b")
        assert "the following arguments are required: OWNER/REPO" in client.error("pull", code=2)


def test_wrong_endpoints_are_one_line(server: LocalHub, client: Client) -> None:
    for url in ("nonsense", "http://127.0.0.1:1", "ftp://127.0.0.1"):
        assert f"shoal: error: {url} cannot be reached (" in client.error("pull", REPOSITORY, HF_ENDPOINT=url)
    line = client.error("pull", REPOSITORY, HF_ENDPOINT=server.url + "/other")
    assert "answered owner/model with status 404" in line and line.endswith("check HF_ENDPOINT\n")


def test_full_disk_is_found_before_the_download(server: LocalHub, client: Client) -> None:
    server.sizes["model-Q8_0.gguf"] = 1 << 60
    line = client.error("pull", f"{REPOSITORY}:Q8_0")
    assert re.search(r"owner/model:Q8_0 needs 1048576\.0 TiB, but the disk of .* has .* left; free space, or set HF_HOME",
                     line)
    assert not server.downloads("model-Q8_0.gguf")


def test_cache_that_cannot_be_written_is_one_line(client: Client) -> None:
    client.cache.mkdir()
    (client.cache / "hub").write_text("a file in place of the folder")
    assert "set HF_HOME to a folder that you may write" in client.error("pull", REPOSITORY)
    assert "check HF_HOME" in client.error("list")
    folder = str(client.cache / "hub")
    assert "set HF_HUB_CACHE to a folder that you may write" in client.error("pull", REPOSITORY, HF_HUB_CACHE=folder)
    assert "check HF_HUB_CACHE" in client.error("list", HF_HUB_CACHE=folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_a_download_in_order(tmp_path: pathlib.Path, number: signal.Signals) -> None:
    files = {"m-Q8_0-00001-of-00002.gguf": b"first", "m-Q8_0-00002-of-00002.gguf": bytes(30 * MIB)}
    with LocalHub({REPOSITORY: files}) as server:
        client = Client(tmp_path, server.url)
        server.delay = 0.02
        child = client.start("pull", REPOSITORY)
        deadline = time.monotonic() + 60
        while not server.downloads("m-Q8_0-00002-of-00002.gguf") and time.monotonic() < deadline:
            time.sleep(0.02)
        child.send_signal(number)
        assert child.communicate(timeout=30) == ("", "")
        assert child.returncode == 128 + number
        assert [blob.read_bytes() for blob in client.blobs()] == [b"first"], "complete files remain, partial files do not"
        server.delay = 0
        client.pull(REPOSITORY)
        assert len(server.downloads("m-Q8_0-00001-of-00002.gguf")) == 1


def test_progress_appears_only_on_terminals(server: LocalHub, client: Client) -> None:
    def stderr_of(*arguments: str) -> str:
        main, other = pty.openpty()
        termios.tcsetwinsize(other, (24, 80))  # a terminal without a width shows no bar
        done = subprocess.run(client.command(*arguments), env=client.environment, stdout=subprocess.DEVNULL,
                              stderr=other, check=True)
        os.close(other)
        text = b""
        try:
            while piece := os.read(main, 4096):
                text += piece
        except OSError:  # the end of a terminal without writers
            pass
        os.close(main)
        assert done.returncode == 0
        return text.decode()
    assert "100%" in stderr_of("pull", f"{REPOSITORY}:Q8_0")
    assert stderr_of("pull", f"{REPOSITORY}:Q4_K_M", "--no-progress") == ""


def test_list_names_models_as_pull_accepts_them(client: Client) -> None:
    paths = {client.pull(f"{REPOSITORY}:{quant}") for quant in ("Q8_0", "BF16", "UD-Q4_K_XL")}
    listed = json.loads(client.run("list", "--output", "json").stdout)
    assert listed["cache"] == str(client.cache / "hub")
    assert [(model["name"], model["quantization"], model["bytes"]) for model in listed["models"]] == [
        ("owner/model:BF16", "BF16", 11), ("owner/model:Q8_0", "Q8_0", 3000),
        ("owner/model:UD-Q4_K_XL", "UD-Q4_K_XL", 2100)]
    assert {pathlib.Path(model["path"]) for model in listed["models"]} == paths
    for model in listed["models"]:
        assert str(client.pull(model["name"])) == model["path"]
        used = time.strptime(model["last_used"], "%Y-%m-%dT%H:%M:%SZ")
        assert abs(time.mktime(used) - time.mktime(time.gmtime())) < 3600


def test_list_names_files_of_equal_quantization_apart(tmp_path: pathlib.Path) -> None:
    with LocalHub({REPOSITORY: {"a-Q4_0.gguf": b"a", "b-Q4_0.gguf": b"b", "plain.gguf": b"p"}}) as server:
        client = Client(tmp_path, server.url)
        for name in ("a-Q4_0", "b-Q4_0", "plain"):
            client.pull(f"{REPOSITORY}:{name}")
        models = json.loads(client.run("list", "--output", "json").stdout)["models"]
        assert [model["name"] for model in models] == [f"owner/model:{name}" for name in ("a-Q4_0", "b-Q4_0", "plain")]
        assert [model["quantization"] for model in models] == ["Q4_0", "Q4_0", None]
        assert [client.pull(model["name"]).read_bytes() for model in models] == [b"a", b"b", b"p"]


def test_list_prints_a_table(client: Client) -> None:
    path = client.pull(f"{REPOSITORY}:Q8_0")
    head, row = client.run("list").stdout.splitlines()
    assert head.split() == ["name", "quantization", "size", "last", "use", "path"]
    assert re.fullmatch(rf"owner/model:Q8_0  Q8_0          2\.9 KiB  \d{{4}}-\d\d-\d\d \d\d:\d\d  {re.escape(str(path))}",
                        row)


def test_list_of_an_empty_cache_says_how_to_download(client: Client) -> None:
    done = client.run("list")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"no models in {client.cache}/hub; download one with `shoal pull OWNER/REPO`\n"
    assert json.loads(client.run("list", "--output", "json").stdout)["models"] == []
