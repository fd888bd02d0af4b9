"""--pack: what shoal is built with and a bare machine with CUDA lacks, unpacked into one folder that can be carried."""
import pathlib
import shutil
import subprocess
import sys
import tempfile

from gpu.shell import CheckError, find_tool

# Debian's packages: libraries with their headers and CMake files. libudev1 is what libhwloc needs itself.
PACKAGES = ("libfmt-dev", "libfmt9", "nlohmann-json3-dev", "libcli11-dev", "libhwloc-dev", "libhwloc15", "libudev1",
            "libpcre2-dev", "libpcre2-8-0",
            "libbenchmark-dev", "libbenchmark1debian", "googletest")  # fmt: skip
# Python's, for make_model.py; NumPy is compiled for one version of Python and therefore not among them.
WHEELS = ("gguf==0.19.0", "tqdm", "PyYAML")
# Not needed; pkg-config's files would name folders that the libraries are not in.
UNWANTED = ("usr/share/doc", "usr/share/man", "usr/share/lintian", "usr/share/bug", "usr/share/doc-base",
            "usr/share/pkgconfig", "usr/src")  # fmt: skip
MOST_BYTES = 40_000_000  # with 26 MB of the tree itself, what is carried stays below 64 MiB


def call(command: list, cwd: pathlib.Path) -> None:
    done = subprocess.run([str(word) for word in command], cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, check=False)  # fmt: skip
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise CheckError(f"{command[0]} {command[1]}: {lines[-1]}")


def need(tool: str) -> str:
    found = find_tool(tool)
    if not found:
        raise CheckError(f"--pack needs {tool}: run it on Debian 12")
    return found


def unpack_packages(folder: pathlib.Path) -> None:
    apt, dpkg = need("apt-get"), need("dpkg")
    with tempfile.TemporaryDirectory() as work:
        call([apt, "-qq", "download", *PACKAGES], pathlib.Path(work))
        for package in sorted(pathlib.Path(work).glob("*.deb")):
            call([dpkg, "-x", package, folder], pathlib.Path(work))
    shutil.copytree(folder / "usr/src/googletest", folder / "googletest")
    move_root_libraries(folder)
    for name in UNWANTED:
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (*folder.glob("usr/lib/*/pkgconfig"), *folder.glob("googletest/*/test")):
        shutil.rmtree(name)


def move_root_libraries(folder: pathlib.Path) -> None:
    """libudev lies in /lib, which is a link to /usr/lib on an installed system."""
    for library in folder.glob("lib/*-linux-gnu/*"):
        target = folder / "usr" / library.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        library.rename(target)
    for name in ("lib", "etc"):
        shutil.rmtree(folder / name, ignore_errors=True)


def unpack_wheels(folder: pathlib.Path) -> None:
    target = folder / "python"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    call([*pip, "--target", target, *WHEELS], folder)
    for compiled in target.rglob("*.so"):  # of this Python only; PyYAML does without
        compiled.unlink()
    shutil.rmtree(target / "bin", ignore_errors=True)


def replace_links(folder: pathlib.Path) -> None:
    """By what they point to, because links may not survive being carried."""
    for path in sorted(folder.rglob("*")):
        if not path.is_symlink():
            continue
        target = path.resolve()
        path.unlink()
        if target.is_file() and folder in target.parents:
            shutil.copy2(target, path)


def size_of(folder: pathlib.Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def pack(folder: pathlib.Path) -> None:
    folder = folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        raise CheckError(f"--pack: {folder} is not empty")
    folder.mkdir(parents=True, exist_ok=True)
    unpack_packages(folder)
    unpack_wheels(folder)
    replace_links(folder)


def report_size(folder: pathlib.Path) -> int:
    size = size_of(folder)
    print(f"{folder}: {size / 1e6:.1f} MB in {sum(path.is_file() for path in folder.rglob('*'))} files")
    if size > MOST_BYTES:
        raise CheckError(f"--pack: more than {MOST_BYTES / 1e6:.0f} MB: look at what is so large")
    return 0
