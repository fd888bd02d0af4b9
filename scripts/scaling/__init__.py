"""The modules of scripts/bench_scaling.py."""
