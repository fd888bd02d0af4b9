"""Writes a Graph: the text, and the weights as a GGUF file."""

import pathlib

import gguf


def write(graph, out: pathlib.Path):
    """Writes OUT.txt and OUT.gguf. Returns the numbers of nodes, weights and bytes of the weights."""
    text, weights = graph.text(), graph.weights()
    out.parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(f"{out}.txt").write_text(text)
    write_tensors(f"{out}.gguf", {tensor.name: tensor.array for tensor in weights})
    return text.count(" = "), len(weights), sum(tensor.array.nbytes for tensor in weights)


def write_tensors(path, arrays):
    """Writes arrays of at most 4 axes to a GGUF file."""
    writer = gguf.GGUFWriter(path, "graph")
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
