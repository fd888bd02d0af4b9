"""Shapes of models for make_model.py: sizes (shape.py), and the tensors and keys that follow from them (layers.py)."""
