"""Shapes of models for make_model.py: sizes (shape.py), and what that means for tensors and keys of a file (layers.py)."""
