"""Modules that several measuring scripts share: calls of the program, journals, tables and charts."""
