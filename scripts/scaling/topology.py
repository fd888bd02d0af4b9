"""The machine that was measured on, for the report: sockets, NUMA nodes, caches and cores as hwloc's program or sysfs
say, GPUs and how they are connected as NVML or nvidia-smi say. Whatever cannot be read is left out; names and addresses
of the machine are never read."""

import dataclasses
import os
import pathlib
import platform
import re
import shutil
import subprocess
import xml.etree.ElementTree as xml

HWLOC_PROGRAMS = ("lstopo-no-graphics", "hwloc-ls", "lstopo")
GPU_QUERY = ("index", "name", "memory.total", "driver_version", "pcie.link.gen.max", "pcie.link.width.max")


@dataclasses.dataclass
class Host:
    source: str = ""  # "hwloc 2.9.0", "sysfs"
    cpu: str = ""
    system: str = ""
    sockets: int = 0
    cores: int = 0
    threads: int = 0
    usable: int = 0  # threads that this process may use
    memory: int = 0
    nodes: list[dict] = dataclasses.field(default_factory=list)  # {"index", "memory", "cores"}
    caches: list[dict] = dataclasses.field(default_factory=list)  # {"name", "bytes", "count"}
    gpus: list[dict] = dataclasses.field(default_factory=list)  # {"name", "memory", "link"}
    driver: str = ""
    links: list[str] = dataclasses.field(default_factory=list)  # "GPU0 - GPU1: NVLink x18"


def output_of(command: list[str]) -> str | None:
    """None where there is no such program, or it fails."""
    if not shutil.which(command[0]):
        return None
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def infos(element: xml.Element) -> dict[str, str]:
    return {info.get("name", ""): info.get("value", "") for info in element.findall("info")}


def processors(element: xml.Element) -> set[int]:
    """The bits of a cpuset such as 0x00000001,0x0000000f."""
    words = [int(word, 16) if word else 0 for word in (element.get("cpuset") or "0x0").split(",")]
    mask = 0
    for word in words:
        mask = mask << 32 | word
    return {bit for bit in range(mask.bit_length()) if mask >> bit & 1}


def summed_caches(found: list[tuple[str, int]]) -> list[dict]:
    counts: dict[tuple[str, int], int] = {}
    for cache in found:
        counts[cache] = counts.get(cache, 0) + 1
    return [{"name": name, "bytes": size, "count": count} for (name, size), count in sorted(counts.items())]


def from_hwloc(text: str) -> Host:
    """Of the XML that `lstopo --of xml` prints. Raises ValueError where it is something else."""
    try:
        root = xml.fromstring(text)
    except xml.ParseError as error:
        raise ValueError(f"not the XML of hwloc: {error}") from error
    objects: dict[str, list[xml.Element]] = {}
    for element in root.iter("object"):
        objects.setdefault(element.get("type", ""), []).append(element)
    if root.tag != "topology" or not objects.get("PU"):
        raise ValueError("not the XML of hwloc: it has no processors")
    host = Host(sockets=len(objects.get("Package", [])), threads=len(objects["PU"]))
    host.cores = len(objects.get("Core", [])) or host.threads
    about = [infos(element) for element in objects.get("Package", []) + objects.get("Machine", [])]
    host.cpu = next((info["CPUModel"] for info in about if info.get("CPUModel")), "").strip()
    host.source = "hwloc " + next((info["hwlocVersion"] for info in about if info.get("hwlocVersion")), "")
    cores = [processors(core) for core in objects.get("Core", objects["PU"])]
    for node in objects.get("NUMANode", []):
        own, memory = processors(node), int(node.get("local_memory", "0"))
        inside = sum(bool(core & own) for core in cores)
        host.nodes.append({"index": int(node.get("os_index", "0")), "memory": memory, "cores": inside})
    host.memory = sum(node["memory"] for node in host.nodes)
    caches = [
        (kind.removesuffix("Cache"), int(element.get("cache_size", "0")))
        for kind, elements in objects.items()
        if re.fullmatch(r"L(1|2|3|4|5)Cache", kind)
        for element in elements
    ]
    host.caches = summed_caches(caches)
    return host


def word_of(path: pathlib.Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def bytes_of(text: str) -> int:
    """32K, 1024 kB: bytes."""
    match = re.match(r"\s*(\d+)\s*([KMG]?)", text, re.IGNORECASE)
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2].lower()] if match else 0


def listed(text: str) -> set[int]:
    """0-3,8: 0 1 2 3 8."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def from_sysfs(root: pathlib.Path = pathlib.Path("/")) -> Host:
    """Without hwloc's program: /proc and /sys of Linux."""
    host = Host(source="sysfs")
    info = word_of(root / "proc/cpuinfo")
    if match := re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE):
        host.cpu = match[1].strip()
    folders = sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*"))
    places, shared = {}, set()
    for folder in folders:
        if not (folder / "topology").exists():
            continue  # offline
        socket = word_of(folder / "topology/physical_package_id")
        places[int(folder.name[3:])] = (socket, word_of(folder / "topology/core_id"))
        for cache in (folder / "cache").glob("index*"):
            if word_of(cache / "type") != "Instruction":
                name, size = f"L{word_of(cache / 'level')}", bytes_of(word_of(cache / "size"))
                shared.add((name, size, word_of(cache / "shared_cpu_list") or folder.name))
    host.threads, host.cores = len(places), len(set(places.values()))
    host.sockets = len({socket for socket, _ in places.values()})
    host.caches = summed_caches([(name, size) for name, size, _ in shared])
    for folder in sorted((root / "sys/devices/system/node").glob("node[0-9]*"), key=lambda one: int(one.name[4:])):
        match = re.search(r"MemTotal:\s*(.+)", word_of(folder / "meminfo"))
        own = {places[cpu] for cpu in listed(word_of(folder / "cpulist")) if cpu in places}
        memory = bytes_of(match[1]) if match else 0
        host.nodes.append({"index": int(folder.name[4:]), "memory": memory, "cores": len(own)})
    if match := re.search(r"MemTotal:\s*(.+)", word_of(root / "proc/meminfo")):
        host.memory = bytes_of(match[1])
    return host


def gpus_of_nvml(nvml) -> tuple[list[dict], str, list[str]]:
    """GPUs, the driver's version and the links between GPUs; nvml: the module pynvml, initialised."""
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    gpus = []
    for handle in handles:
        name = nvml.nvmlDeviceGetName(handle)
        gpu = {
            "name": name.decode() if isinstance(name, bytes) else name,
            "memory": nvml.nvmlDeviceGetMemoryInfo(handle).total,
            "link": "",
        }
        try:
            generation = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
            gpu["link"] = f"PCIe {generation}.0 x{nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)}"
        except nvml.NVMLError:
            pass
        gpus.append(gpu)
    driver = nvml.nvmlSystemGetDriverVersion()
    links = [
        f"GPU{one} - GPU{other}: {link_of_nvml(nvml, handles[one], handles[other])}"
        for one in range(len(handles))
        for other in range(one + 1, len(handles))
    ]
    return gpus, driver.decode() if isinstance(driver, bytes) else driver, links


def link_of_nvml(nvml, one, other) -> str:
    """NVLink between two GPUs, or what their PCIe paths have in common."""
    count, target = 0, nvml.nvmlDeviceGetPciInfo(other).busId
    for link in range(18):
        try:
            if nvml.nvmlDeviceGetNvLinkState(one, link) and nvml.nvmlDeviceGetNvLinkRemotePciInfo(one, link).busId == target:
                count += 1
        except nvml.NVMLError:
            break
    if count:
        return f"NVLink x{count}"
    names = {0: "one board", 10: "one switch", 20: "several switches", 30: "one host bridge", 40: "one NUMA node", 50: "system"}
    try:
        return f"PCIe, {names.get(nvml.nvmlDeviceGetTopologyCommonAncestor(one, other), 'unknown')}"
    except nvml.NVMLError:
        return "unknown"


def gpus_of_smi(listing: str, matrix: str) -> tuple[list[dict], str, list[str]]:
    """From nvidia-smi's CSV of GPU_QUERY and its `topo -m`."""
    gpus, driver = [], ""
    for line in listing.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(GPU_QUERY):
            continue
        _, name, memory, driver, generation, width = cells
        known = generation.isdigit() and width.isdigit()
        size = int(memory.split()[0]) << 20 if memory.split()[0].isdigit() else 0
        gpus.append({"name": name, "memory": size, "link": f"PCIe {generation}.0 x{width}" if known else ""})
    plain = re.sub(r"\x1b\[[0-9;]*m", "", matrix)
    rows = {cells[0]: cells[1:] for line in plain.splitlines() if (cells := line.split()) and re.match(r"GPU\d+$", cells[0])}
    links = []
    for one in range(len(gpus)):
        for other in range(one + 1, len(gpus)):
            cells = rows.get(f"GPU{one}", [])
            if other < len(cells):
                links.append(f"GPU{one} - GPU{other}: {cells[other].replace('NV', 'NVLink x')}")
    return gpus, driver, links


def add_gpus(host: Host) -> None:
    try:
        import pynvml  # noqa: PLC0415  (nvidia-ml-py, where it is installed)

        pynvml.nvmlInit()
        try:
            host.gpus, host.driver, host.links = gpus_of_nvml(pynvml)
        finally:
            pynvml.nvmlShutdown()
        return
    except Exception:  # there is no such package, driver or GPU, or it is too old for what is asked
        pass
    listing = output_of(["nvidia-smi", f"--query-gpu={','.join(GPU_QUERY)}", "--format=csv,noheader"])
    if listing:
        host.gpus, host.driver, host.links = gpus_of_smi(listing, output_of(["nvidia-smi", "topo", "-m"]) or "")


def read() -> Host:
    host = None
    for program in HWLOC_PROGRAMS:
        if text := output_of([program, "--of", "xml"]):
            try:
                host = from_hwloc(text)
                break
            except ValueError:
                continue
    host = host or from_sysfs()
    host.system = f"{platform.system()} {platform.release()}"
    if "SC_PHYS_PAGES" in os.sysconf_names:  # memory that was added later is missing in what hwloc says of the nodes
        host.memory = max(host.memory, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    host.usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else host.threads
    add_gpus(host)
    return host


def size_text(size: int) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << power:
            return f"{size / (1 << power):.1f}".removesuffix(".0") + f" {unit}"
    return f"{size} B"


def counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def lines(host: Host) -> list[tuple[str, str]]:
    """What and its value, for a table."""
    found = [("CPU", host.cpu or platform.machine())]
    sizes = f"{counted(host.sockets, 'socket')}, {counted(host.cores, 'core')}, {counted(host.threads, 'hardware thread')}"
    if host.usable and host.usable < host.threads:
        sizes += f", {host.usable} of them usable here"
    found.append(("cores", sizes))
    if host.caches:
        caches = (f"{cache['name']} {cache['count']} x {size_text(cache['bytes'])}" for cache in host.caches)
        found.append(("caches", ", ".join(caches)))
    nodes = [
        f"node {node['index']}: {counted(node['cores'], 'core')}, {size_text(node['memory'])}"
        if node["memory"]
        else f"node {node['index']}: {counted(node['cores'], 'core')}"
        for node in host.nodes
    ]
    found.append(("NUMA", "; ".join(nodes) or "unknown"))
    found.append(("memory", size_text(host.memory)))
    gpus = [f"{gpu['name']}, {size_text(gpu['memory'])}{', ' + gpu['link'] if gpu['link'] else ''}" for gpu in host.gpus]
    found.append(("GPUs", "; ".join(gpus) + (f"; driver {host.driver}" if host.driver else "") if gpus else "none"))
    if host.links:
        found.append(("links", "; ".join(host.links)))
    found += [("system", host.system), ("read by", host.source)]
    return found
