"""Programs that are built on another machine and carried to the one with the GPU, which saves minutes there."""
import io
import json
import lzma
import os
import pathlib
import re
import shutil
import tarfile
import tempfile
import time

from gpu.build import build_command, configure_command, targets
from gpu.machine import nvcc_version
from gpu.report import Result
from gpu.shell import CheckError, Outcome, describe, find_tool, require_success, run
from gpu.steps import good

ARCHIVE = "programs.tar.xz"
FACTS = "programs.json"
HOUR = 3600.0
# Far enough back for the kernels (6 MB compressed, 30 MB uncompressed), which the plug-in and test_cuda_gpu both contain.
COMPRESSION = {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 128 << 20}
MODELS = "tests/models"  # made while test_models is built


def pack(context, arch: str, folder: pathlib.Path) -> None:
    """Builds all targets, in context.build, and writes them stripped into the archive."""
    log = context.log("programs")
    require_success(run(configure_command(context, arch, strict=True), HOUR, log), "configure")
    outcome = run(build_command(context, targets(context)), HOUR, log, append=True)
    if outcome.status != 0:
        raise CheckError(f"--programs: not everything could be built, see {log}; {outcome.last_line()}")
    strip = find_tool("strip")
    if not strip:
        raise CheckError("--programs needs strip (binutils)")
    names = [name for name in targets(context) if name != context.plugin_target]
    files = [*(context.build / "bin" / name for name in names), context.plugin]
    facts = {"commit": context.commit, "architecture": arch, "nvcc": nvcc_version(HOUR, log), "root": str(context.root),
             "build": str(context.build.relative_to(context.root))}  # fmt: skip
    with (tempfile.TemporaryDirectory() as work, lzma.open(folder / ARCHIVE, "wb", filters=[COMPRESSION]) as file,
          tarfile.open(fileobj=file, mode="w") as archive):  # fmt: skip
        text = json.dumps(facts).encode()
        entry = tarfile.TarInfo(FACTS)
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))  # first, so that it is found at once
        for program in files:
            stripped = pathlib.Path(work) / program.name
            require_success(run([strip, "-o", stripped, program], HOUR, log, append=True), f"strip {program.name}")
            archive.add(stripped, f"bin/{program.name}")
        for model in sorted((context.build / MODELS).glob("*-q4_0.gguf")):  # others are in the tree
            archive.add(model, f"{MODELS}/{model.name}")


def unpack(context, limit: float) -> Result:
    """The step programs. Programs that cannot be used are built here."""
    archive = context.deps / ARCHIVE if context.deps else None
    if archive is None or not archive.is_file():
        return good("none carried, they are built here")
    end = time.monotonic() + limit
    try:
        with tarfile.open(archive, "r:xz") as packed:
            facts = json.loads(packed.extractfile(packed.next()).read())
            if why := why_not(context, facts):
                return good(f"{why}: they are built here", **facts)
            extract(context, packed)
    except Exception as error:  # of tarfile, lzma, json and the disk
        return good(f"those carried cannot be read ({describe(error)}): they are built here")
    stand_in = stand_in_for(facts["root"], context.root)
    extract_models(context)
    tried = run([context.program("shoal"), "devices", "--plugin", context.plugin], end - time.monotonic(),
                context.log("programs"), context.environment())  # fmt: skip
    if why := why_not_working(tried):
        shutil.rmtree(context.build / "bin")
        return good(f"those carried {why}: they are built here")
    context.carried = True
    here = context.machine.get("nvcc")
    compiler = f", nvcc {facts['nvcc']}{f', not {here} as is here' if here not in (None, facts['nvcc']) else ''}"
    return good(f"of commit {facts['commit']}{compiler}{stand_in}", **facts)


def why_not_working(tried: Outcome) -> str:
    """From `shoal devices`, which is content with a plug-in that the machine's driver is too old for."""
    if tried.status != 0:
        return f"do not run ({tried.ending()}; {tried.last_line()})"
    return "" if re.search(r"^CUDA0 ", tried.output, re.MULTILINE) else f"do not find the GPU ({tried.last_line()})"


def extract(context, packed: tarfile.TarFile) -> None:
    """All or none of the programs; not into files that may be running."""
    shutil.rmtree(context.build / "bin", ignore_errors=True)
    try:
        packed.extractall(context.build, filter="data")
    except Exception:
        shutil.rmtree(context.build / "bin", ignore_errors=True)
        raise


def why_not(context, facts: dict) -> str:
    gpus = context.machine.get("gpus") or [{"compute_cap": ""}]
    arch = gpus[0]["compute_cap"].replace(".", "")
    a, b = facts["commit"], context.commit
    if not (a.startswith(b) or b.startswith(a)):
        return f"those carried are of commit {a}, not {b}"
    if facts["architecture"] != arch:
        return f"those carried are for sm_{facts['architecture']}, not sm_{arch}"
    if context.build != context.root / facts["build"]:
        return f"those carried belong into {facts['build']}"
    return ""


def extract_models(context) -> None:
    """As configuring does."""
    for packed in (context.root / "data/models").glob("*.gguf.tar.xz"):
        with tarfile.open(packed) as archive:
            archive.extractall(context.build / MODELS, filter="data")


def stand_in_for(root: str, real: pathlib.Path) -> str:
    """Tests find their data by the path of the tree that they were built in: a link to this one takes its place."""
    if os.path.exists(root):
        return "" if pathlib.Path(root).resolve() == real.resolve() else f"; test data of {root}"
    try:
        os.makedirs(os.path.dirname(root), exist_ok=True)
        os.symlink(real, root)
    except OSError as error:
        return f"; tests do not find their data, because {root} cannot be made: {error.strerror}"
    return ""
