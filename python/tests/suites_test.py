"""Short versions of the suites of scripts/serving/suites.py, which need the program `shoal` of a build, and the network."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(os.environ.get("SHOAL_PROGRAM") or ROOT / "build/release/bin/shoal")
MOST_SECONDS = 1700  # the first run installs packages


@pytest.mark.skipif(not os.access(PROGRAM, os.X_OK), reason=f"there is no program {PROGRAM}; build it, or set SHOAL_PROGRAM")
@pytest.mark.timeout(MOST_SECONDS + 10)
def test_third_party_suites_pass(model_path: Path, tmp_path: Path) -> None:
    names = ("llama", "openai", "anthropic", "fuzz", "lm_eval")
    output = tmp_path / "suites.json"
    command = [sys.executable, ROOT / "scripts/serving/suites.py", *(f"--only={name}" for name in names), "-m", model_path,
               "--shoal", PROGRAM, "--folder", tmp_path, "-o", output]
    done = subprocess.run(command, env={**os.environ, "SHOAL_PYTHON": sys.executable}, capture_output=True, text=True,
                          timeout=MOST_SECONDS, check=False)
    if "there is no network" in done.stdout:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [result["name"] for result in json.loads(output.read_text())] == list(names)
    assert "skipped" not in done.stdout
