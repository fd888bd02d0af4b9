#!/usr/bin/env python3
"""Times the networks of scripts/reference/nets with shoal and with ONNX Runtime on the CPU, in float32.

    python3 -m venv venv && venv/bin/pip install -r scripts/requirements-reference.txt
    venv/bin/python scripts/reference/bench_nets.py build/release/bin/net_bench
    venv/bin/python scripts/reference/bench_nets.py build/release/bin/net_bench --small --only unet --threads 4

shoal runs on one device with all threads, and on two devices that divide the threads. Each run is compared with ONNX
Runtime, and the script fails if the NMSE exceeds 1e-9. The table has the median times in ms.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402

from nets.store import NETS  # noqa: E402

TOLERANCE = 1e-9


def run_onnx_runtime(net, shapes, threads, runs):
    """Returns the output and the median time in ms."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(net.model().SerializeToString(), options, providers=["CPUExecutionProvider"])
    inputs = {name: net.input(name, shape) for name, shape in shapes.items()}
    output, times = session.run(None, inputs)[0], []
    for _ in range(runs):
        begin = time.perf_counter()
        session.run(None, inputs)
        times.append(1000 * (time.perf_counter() - begin))
    return output.reshape(-1), statistics.median(times)


def run_shoal(program, folder, net, devices, threads, runs):
    out = folder / "out.bin"
    command = [
        program,
        folder,
        net.name,
        net.output,
        "--shares",
        ",".join("1" * devices),
        "--threads",
        threads,
        "--runs",
        runs,
        "--out",
        out,
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"bench_nets.py: {net.name}: {done.stderr.strip()}")
    return np.fromfile(out, np.float32), float(done.stdout.split()[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path, help="net_bench of the build")
    parser.add_argument("--only", choices=[net.name for net in NETS], help="only this network")
    parser.add_argument("--small", action="store_true", help="use the short inputs of the tests")
    parser.add_argument("--threads", type=int, default=2, help="threads of ONNX Runtime and of all devices together")
    parser.add_argument("--runs", type=int, default=5, help="timed runs of each configuration")
    args = parser.parse_args()
    print("| network | ONNX Runtime | shoal, 1 device | shoal, 2 devices | NMSE |\n|---|---|---|---|---|")
    for net in NETS:
        if args.only not in (None, net.name):
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            writer = [sys.executable, pathlib.Path(__file__).parent / "write_nets.py", folder, "--only", net.name]
            subprocess.run(writer + ([] if args.small else ["--large"]), check=True)
            shapes = net.inputs if args.small else net.large
            expected, peer = run_onnx_runtime(net, shapes, args.threads, args.runs)
            times, worst = [], 0.0
            for devices in (1, 2):
                found, took = run_shoal(args.program, folder, net, devices, max(1, args.threads // devices), args.runs)
                wide = expected.astype(np.float64)
                worst = max(worst, float(np.sum((found - wide) ** 2) / np.sum(wide**2)))
                times.append(f"{took:.1f}")
        print(f"| {net.name} | {peer:.1f} | {' | '.join(times)} | {worst:.1e} |", flush=True)
        if not worst <= TOLERANCE:
            sys.exit(f"bench_nets.py: {net.name} differs from ONNX Runtime by {worst:.1e}")


if __name__ == "__main__":
    main()
