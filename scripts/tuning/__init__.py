"""The search of scripts/tune_split.py; docs/tuning.md says how it works."""
