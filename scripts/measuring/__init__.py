"""Shared parts of the scripts that measure: running the program, journals, tables and charts."""
