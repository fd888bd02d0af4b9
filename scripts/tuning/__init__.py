"""The search of scripts/tune_split.py, which docs/tuning.md explains."""
