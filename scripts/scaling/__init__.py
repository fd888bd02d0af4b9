"""What scripts/bench_scaling.py is made of: configurations and their order (runs), speed-ups (analysis), where the time
goes (trace), the host (topology), charts and tables (charts, report)."""
