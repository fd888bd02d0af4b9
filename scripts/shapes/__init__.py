"""Shapes of models for make_model.py. shape.py defines sizes. layers.py derives tensors and GGUF keys from the
sizes."""
