"""The modules of scripts/gpu_check. They use only Python's standard library."""
