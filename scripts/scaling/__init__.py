"""What scripts/bench_scaling.py is made of: configurations and their order (runs), devices that are alike (devices),
speed-ups (analysis), where the time goes (trace), the host (topology), charts, tables and facts (charts, report, facts)."""
