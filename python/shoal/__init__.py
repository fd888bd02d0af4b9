"""shoal: several devices act as one.

    import shoal

    model = shoal.Model("model.gguf", devices="CUDA0,CUDA1", tensor_split="3,1", context=8192)
    for piece in model.generate("In the beginning", max_tokens=32):
        print(piece.text, end="", flush=True)

`plan()`, `devices()`, `probe()` and `bench()` run the program of the package and return its JSON. `Graph`,
`MetaDevice` and their neighbours shard any compute graph (shoal.core).
"""
from typing import TYPE_CHECKING, Any

from ._shoal import CommError, DeviceError, Error
from ._shoal import version as __version__
from .model import Completion, Model, Piece
from .program import bench, devices, info, plan, probe

if TYPE_CHECKING:
    from .core import (Comparison, Device, Graph, Hint, MetaDevice, NodeDifference, Plan, SplitState, Tensor, compare,
                       device, device_list, rule)

CORE = ("Comparison", "Device", "Graph", "Hint", "MetaDevice", "NodeDifference", "Plan", "SplitState", "Tensor", "compare",
        "device", "device_list", "rule")

__all__ = ["CommError", "Completion", "DeviceError", "Error", "Model", "Piece", "__version__", "bench", "devices", "info",
           "plan", "probe", *CORE]


def __getattr__(name: str) -> Any:
    """Imports the core when it is first used, because NumPy takes a tenth of a second."""
    if name not in CORE:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    from . import core

    return getattr(core, name)
