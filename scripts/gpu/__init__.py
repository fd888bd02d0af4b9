"""The parts of scripts/gpu_check. Only Python's standard library is used."""
