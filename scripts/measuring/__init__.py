"""What the scripts that measure share: running the program, journals, tables and charts."""
