"""A substitute for `shoal plan` and `shoal bench`, for tests with devices of known speeds.

$FAKE_SHOAL names a JSON file: {"speeds": [1, 3], "wait": 0.05, "units": 24, "noise": 0.01, "seed": 1, "seconds": 0.1,
"prediction": [1, 3], "memory": [9, 24], "failures": [{"share": [0, 0.2, 1], "how": "message"}], "log": "FILE"}. A
token takes `wait` plus the largest share / speed of all devices. Repetitions vary by a factor exp(noise), and runs vary
by a factor exp(run_noise). With "drift" d, each run is slower than the previous run by the factor exp(d). Each bench
appends its shares to the file "log". The line number is part of the seed of the noise. "memory" is the number of units
that fit into each device, and "descriptions" describe the devices. The run with the number "hangs_at" does not end. A
failure with "share" [device, low, high] occurs if the device's share is in [low, high).
"""
import json
import math
import os
import random
import signal
import sys
import time


def flag(name, default=None):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def rounded(shares, units):
    ends = [round(units * sum(shares[:d + 1]) / sum(shares)) for d in range(len(shares))]
    return [end - begin for begin, end in zip([0, *ends], ends)]


def shares_of(config, devices):
    text = flag("--tensor-split")
    if text == "auto":
        if "prediction" not in config:
            sys.exit("shoal: error: bad ratio 'auto': 'auto' is not a number >= 0; give one for each device, such as 3,1")
        return config["prediction"]
    return [float(one) for one in text.split(",")] if text else [1.0] * len(devices)


def seconds(config, units, phase="generation"):
    speeds = config.get(f"{phase}_speeds", config["speeds"])
    return config.get("wait", 0.0) + max(part / sum(units) / speed for part, speed in zip(units, speeds))


def plan(config, devices, shares):
    units = rounded(shares, config["units"])
    most = config.get("memory", [10**9] * len(devices))
    cells = [part * (1 + int(flag("-c")) / 65536) for part in units]
    answer = {
        "fits": all(part <= room for part, room in zip(cells, most)),
        "memory": [{"device": name, "total": int(part * 2**20), "free": int(room * 2**20)}
                   for name, part, room in zip(devices, cells, most)],
        "descriptions": config.get("descriptions", [f"fake, {name}" for name in devices]),
        "model_type": "fake 1B Q8_0", "build_commit": "0123abc",
        "units": {"vocabulary": 4096, "ffn": config["units"]}, "split_key": ",".join(map(str, units)),
    }
    if flag("--tensor-split") == "auto":
        answer["tensor_split"] = list(shares)
        answer["prediction"] = {"generation": {"tokens_per_second": 1 / seconds(config, units)}}
    print(json.dumps(answer, indent=2))


def fail(config, how):
    if how == "usage":
        print("shoal: error: there is no flag --x; see shoal bench --help", file=sys.stderr)
        sys.exit(2)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        open(config["log"] + ".hangs", "w").close()
        time.sleep(1e6)
    if how == "garbage":
        print("| model | t/s |")
        sys.exit(0)
    sys.exit("shoal: error: CPU1 has too little memory: 9 GiB are needed; give it a smaller share")


def bench(config, devices, shares):
    with open(config["log"], "a+") as log:
        log.write(",".join(f"{share:g}" for share in shares) + "\n")
        log.seek(0)
        number = len(log.read().splitlines())
    for failure in config.get("failures", []):
        device, low, high = failure["share"]
        if low <= shares[device] / sum(shares) < high:
            fail(config, failure["how"])
    time.sleep(1e6 if number == config.get("hangs_at") else config.get("seconds", 0))
    units = rounded(shares, config["units"])
    dice = random.Random(f"{config.get('seed', 0)} {number}")
    slower = dice.gauss(0, config.get("run_noise", 0)) + config.get("drift", 0) * number
    for kind, name, phase in (("n_prompt", "-p", "prompt"), ("n_gen", "-n", "generation")):
        tokens = int(flag(name))
        if tokens == 0:
            continue
        speed = (50 if phase == "prompt" else 1) / seconds(config, units, phase)
        noise = config.get("noise", 0)
        samples = [speed * math.exp(dice.gauss(0, noise) - slower) for _ in range(int(flag("-r", "1")))]
        row = {"build_commit": "0123abc", "model_type": "fake 1B Q8_0", "n_prompt": 0, "n_gen": 0, kind: tokens,
               "test": f"{name[1:]}{tokens}", "avg_ts": sum(samples) / len(samples), "samples_ts": samples}
        print(json.dumps(row))


def main():
    with open(os.environ["FAKE_SHOAL"]) as file:
        config = json.load(file)
    devices = flag("--devices").split(",")
    shares = shares_of(config, devices)
    {"plan": plan, "bench": bench}[sys.argv[1]](config, devices, shares)


if __name__ == "__main__":
    main()
