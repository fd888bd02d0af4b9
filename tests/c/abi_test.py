"""Compares the exported symbols of libshoal.so with c/shoal.map, the C headers, docs/c_api.md, and the needs of plug-ins.

Arguments: nm, libshoal.so, plug-ins. Prints each difference. Exits with 1 if there is any.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
# Mangled names of functions, type information and tables of classes in the namespace shoal.
CLASSES = re.compile(r"_Z(?:N[KO]?|T[ISVT]N|TCN|T[hv]\w*?NK?)5shoal")
# Namespaces of folders whose symbols plug-ins do not need.
HIDDEN = re.compile(r"_Z\w*?N[KO]?5shoal(?:11collectives|7machine|4meta|5sched|6models|1c)\d")


def symbols(nm: str, file: str, *flags: str) -> dict[str, str]:
    """Returns the dynamic symbols with their versions ("" for symbols without a version)."""
    output = subprocess.run([nm, "-D", *flags, file], capture_output=True, text=True, check=True).stdout
    names = [line.split()[-1].replace("@@", "@").partition("@") for line in output.splitlines()]
    return {name: version for name, _, version in names if not name.startswith("SHOAL_")}


def counterparts() -> set[str]:
    """Returns the functions in the second columns of the tables in docs/c_api.md."""
    tables = (ROOT / "docs/c_api.md").read_text().partition("## From ggml-backend.h and llama.h")[2]
    columns = re.findall(r"^\|[^|]*\|([^|]*)\|", tables, re.MULTILINE)
    return {f"shoal_{name}" for column in columns for name in re.findall(r"`([a-z0-9]+_[a-z0-9_]+)`", column)}


def main(nm: str, library: str, *plugins: str) -> int:
    listed = re.search(r"SHOAL_1\.0 \{\nglobal:\n(.*?)local:", (ROOT / "c/shoal.map").read_text(), re.DOTALL)
    listed = set(re.findall(r"\w+", listed[1]))
    headers = "".join((ROOT / "c" / f"{name}.h").read_text() for name in ("shoal", "shoal_devices", "shoal_models"))
    declared = set(re.findall(r"^SHOAL_API [^;(]*?\b(shoal_\w+)\(", headers, re.MULTILINE))
    exported = symbols(nm, library, "--defined-only", "--with-symbol-versions")
    c_names = {name for name, version in exported.items() if version == "SHOAL_1.0"}
    problems = [f"{name}: in c/shoal.map, but not exported" for name in listed - c_names]
    problems += [f"{name}: exported, but not in c/shoal.map" for name in c_names - listed]
    problems += [f"{name}: declared in a header, but not in c/shoal.map" for name in declared - listed]
    problems += [f"{name}: in c/shoal.map, but not declared in a header" for name in listed - declared]
    for name in exported.keys() - c_names:
        if not CLASSES.match(name) or not exported[name].startswith("SHOAL_PLUGIN_"):
            problems.append(f"{name}: exported, but neither a C function nor a class of shoal")
        elif HIDDEN.match(name):
            problems.append(f"{name}: exported, although plug-ins do not need this folder")
    problems += [f"docs/c_api.md: there is no function {name}" for name in counterparts() - c_names]
    for plugin in plugins:
        if not pathlib.Path(plugin).exists():
            problems.append(f"{plugin}: this plug-in was not built")
            continue
        needed = {name for name in symbols(nm, plugin, "--undefined-only") if CLASSES.match(name)}
        if not needed:
            problems.append(f"{plugin}: needs no symbol of shoal")
        problems += [f"{name}: needed by {plugin}, but not exported" for name in needed - exported.keys()]
    print(*sorted(problems), sep="\n", end="\n" if problems else "")
    print(f"{len(c_names)} C functions, {len(exported) - len(c_names)} symbols for plug-ins, {len(plugins)} plug-ins")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
