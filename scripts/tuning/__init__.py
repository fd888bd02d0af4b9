"""The modules of scripts/tune_split.py. docs/tuning.md explains the search."""
