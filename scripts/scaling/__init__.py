"""Parts of scripts/bench_scaling.py."""
