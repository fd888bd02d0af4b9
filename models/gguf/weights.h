// Reads the weights of placed tensors from a GGUF file by name. A program with a graph of its own as text
// (graph/text.h) uses this function. scripts/onnx_to_shoal.py writes such pairs of files.
//
//   GgufFile file("net.gguf");
//   parse_graph(text, graph, weights);
//   auto memory = allocate_tensors(weights.tensors(), device.weights_type(), Usage::kWeights);
//   load_tensors(file, weights.tensors());
//
// Any number of threads may call the function for different tensors.
#pragma once

#include <span>

#include "models/gguf/gguf.h"

namespace shoal::models {

/// Throws InvalidArgument if the file lacks a tensor or has it with another dtype or shape. No tensor is written in
/// this case.
void load_tensors(const GgufFile& file, std::span<Tensor* const> tensors);

}  // namespace shoal::models
