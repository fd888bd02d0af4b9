"""Packs programs with the libraries that the machine with the GPU may lack, and unpacks them on that machine."""
import io
import json
import lzma
import os
import pathlib
import re
import shutil
import sys
import tarfile
import tempfile
import time

from gpu.build import build_command, configure_command, targets
from gpu.machine import architecture, nvcc_version
from gpu.report import Result
from gpu.shell import CheckError, Outcome, describe, find_tool, require_success, run
from gpu.steps import good

ARCHIVE = "programs.tar.xz"
FACTS = "programs.json"
HOUR = 3600.0
# The plug-in and test_cuda_gpu both contain the kernels (6 MB compressed, 30 MB uncompressed). The dictionary is large
# enough to store the kernels only once.
COMPRESSION = {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 128 << 20}
MODELS = "tests/models"  # folder of the models that the target test_models makes
LIBRARY = re.compile(r"^\s+(\S+) => (/\S+) \(0x", re.MULTILINE)  # a line in the output of ldd
# Libraries that are not packed, because every machine has them. Packed copies could be too old: other libraries on the
# machine with the GPU, such as NCCL, may need newer versions than the build machine has.
EVERYWHERE = re.compile(r"(ld-linux|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|gomp)\.so)")
# Python packages for make_model.py. The list omits NumPy, because a NumPy package supports only one version of Python.
WHEELS = ("gguf==0.19.0", "tqdm", "PyYAML")
MOST_BYTES = 40_000_000  # limit of the total size of DIR (--pack); DIR and the checkout (26 MB) need less than 64 MiB


def pack(context, arch: str, folder: pathlib.Path) -> None:
    """Builds all targets in context.build. Writes the stripped programs and their libraries into the archive."""
    log = context.log("programs")
    require_success(run(configure_command(context, arch), HOUR, log), "configure")
    require_success(run(build_command(context, targets(context)), HOUR, log, append=True), f"build, see {log}")
    strip = find_tool("strip")
    if not strip:
        raise CheckError("--pack needs strip (binutils)")
    names = [name for name in targets(context) if name != context.plugin_target]
    files = [*(context.build / "bin" / name for name in names), context.plugin]
    facts = {"commit": context.commit, "architecture": arch, "nvcc": nvcc_version(HOUR, log), "root": str(context.root),
             "build": str(context.build.relative_to(context.root))}  # fmt: skip
    with (tempfile.TemporaryDirectory() as work, lzma.open(folder / ARCHIVE, "wb", filters=[COMPRESSION]) as file,
          tarfile.open(fileobj=file, mode="w") as archive):  # fmt: skip
        text = json.dumps(facts).encode()
        entry = tarfile.TarInfo(FACTS)
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))  # first entry, so that unpack() can read it before all other entries
        for program in files:
            stripped = pathlib.Path(work) / program.name
            require_success(run([strip, "-o", stripped, program], HOUR, log, append=True), f"strip {program.name}")
            archive.add(stripped, f"bin/{program.name}")
        found = require_success(run(["ldd", *files], HOUR, log, append=True), "ldd")
        for name, library in sorted(set(LIBRARY.findall(found.output))):
            if not EVERYWHERE.match(name):
                archive.add(pathlib.Path(library).resolve(), f"lib/{name}")
        for model in sorted((context.build / MODELS).glob("*-q4_0.gguf")):  # the checkout contains the other models
            archive.add(model, f"{MODELS}/{model.name}")


def pack_wheels(context, folder: pathlib.Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", folder / "python"]
    require_success(run([*pip, *WHEELS], HOUR, context.log("programs"), append=True), "pip")
    for compiled in (folder / "python").rglob("*.so"):  # built for this version of Python; PyYAML works without them
        compiled.unlink()


def report_size(folder: pathlib.Path) -> int:
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    print(f"{folder}: {size / 1e6:.1f} MB in {len(files)} files")
    if size > MOST_BYTES:
        raise CheckError(f"--pack: the files have more than {MOST_BYTES / 1e6:.0f} MB: find out which files are large")
    return 0


def unpack(context, limit: float) -> Result:
    """Runs the step `programs`. Rejects programs of another commit, for another GPU or for another build folder. Also
    rejects programs that find no GPU."""
    context.broken = set(targets(context))  # targets count as missing until they are unpacked
    arch = architecture(context.machine["gpus"])
    end = time.monotonic() + limit
    try:
        with tarfile.open(context.deps / ARCHIVE, "r:xz") as packed:
            facts = json.loads(packed.extractfile(packed.next()).read())
            require_fit(context, facts, arch)
            shutil.rmtree(context.build / "bin", ignore_errors=True)  # because a running program cannot be overwritten
            packed.extractall(context.build, filter="data")
    except (AttributeError, KeyError, ValueError, OSError, EOFError, tarfile.TarError, lzma.LZMAError) as error:
        raise CheckError(f"{context.deps / ARCHIVE} cannot be read ({describe(error)}): pack again") from error
    stand_in = stand_in_for(facts["root"], context.root)
    extract_models(context)
    require_working(run([context.build / "bin/shoal", "devices", "--plugin", context.plugin], end - time.monotonic(),
                        context.log("programs"), context.environment()))  # fmt: skip
    context.broken = set()
    here = context.machine.get("nvcc")
    compiler = f", nvcc {facts['nvcc']}{f', but this machine has {here}' if here not in (None, facts['nvcc']) else ''}"
    return good(f"built from commit {facts['commit']}{compiler}{stand_in}", **facts)


def require_working(tried: Outcome) -> None:
    """Checks that `shoal devices` lists a GPU. The exit code is 0 even if the driver is too old for the plug-in."""
    require_success(tried, "shoal devices")
    if not re.search(r"^CUDA0 ", tried.output, re.MULTILINE):
        raise CheckError(f"shoal devices finds no GPU ({tried.last_line()})")


def require_fit(context, facts: dict, arch: str) -> None:
    a, b = facts["commit"], context.commit
    if not (a.startswith(b) or b.startswith(a)):
        raise CheckError(f"the programs are of commit {a}, not {b}: pack again")
    if facts["architecture"] != arch:
        raise CheckError(f"the programs are for sm_{facts['architecture']}, not sm_{arch}: pack with --arch {arch}")
    if context.build != context.root / facts["build"]:
        raise CheckError(f"the programs belong in {facts['build']}: name this folder with --build")


def extract_models(context) -> None:
    """Extracts the same models as the CMake configuration."""
    for packed in (context.root / "data/models").glob("*.gguf.tar.xz"):
        with tarfile.open(packed) as archive:
            archive.extractall(context.build / MODELS, filter="data")


def stand_in_for(root: str, real: pathlib.Path) -> str:
    """Tests search for their data at `root`, the path of the checkout on the build machine. Makes `root` a link to this
    checkout. Returns a note about problems."""
    if os.path.exists(root):
        return "" if pathlib.Path(root).resolve() == real.resolve() else f"; the tests read the data in {root}"
    try:
        os.makedirs(os.path.dirname(root), exist_ok=True)
        os.symlink(real, root)
    except OSError as error:
        return f"; tests do not find their data, because {root} cannot be created: {error.strerror}"
    return ""
