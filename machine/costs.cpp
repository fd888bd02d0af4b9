#include "machine/costs.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace shoal::machine {
namespace {

double as_double(int64_t number) {
  return static_cast<double>(number);
}
double bytes_of(const Tensor& tensor) {
  return as_double(tensor.elements()) * element_bytes(tensor.dtype);
}

/// Number of weight elements that a product reads, and number of columns by which each element is multiplied.
struct Product {
  double elements = 0;
  double columns = 0;
};

Product product_of(const Tensor& node) {
  const Tensor &weight = *node.src[0], &x = *node.src[1];
  const double sheets = as_double(weight.shape[2]) * as_double(weight.shape[3]);
  return {as_double(weight.elements()), as_double(x.rows()) / std::max(sheets, 1.0)};
}

bool is_convolution(const Tensor& node) {
  return node.op == Op::kConv2d || node.op == Op::kConvTranspose2d;
}

/// Each weight of a convolution is multiplied by one column per pixel: a pixel of the result of conv_2d, or of the
/// source of conv_transpose_2d. Pads and edges do not count.
Product convolution_of(const Tensor& node) {
  const Shape& pixels = (node.op == Op::kConv2d ? node : *node.src[1]).shape;
  return {as_double(node.src[0]->elements()), as_double(pixels[0]) * as_double(pixels[1]) * as_double(pixels[3])};
}

/// Returns the average product of a mul_mat_id whose tokens choose among `all` experts. The node may have only some of
/// these experts.
Product expert_product_of(const Tensor& node, int64_t all, double tokens) {
  const Tensor &experts = *node.src[0], &ids = *node.src[2];
  const double taken = as_double(std::min(ids.shape[0], all));
  const double share = all == 0 ? 0 : 1 - std::pow(1 - taken / as_double(all), tokens);
  if (share == 0) return {};
  return {as_double(experts.elements()) * share, taken * tokens / (as_double(all) * share)};
}

/// Number of experts among which tokens choose. If `experts` is 0, the node has all of these experts.
int64_t all_experts(const Tensor& node, int64_t experts) {
  return experts > 0 ? experts : node.src[0]->shape[2];
}

const ProductModel& product_model(const DeviceModel& device, const ProductTable& products, const Tensor& node) {
  const DType dtype = node.src[0]->dtype;
  const ProductModel* model = products.by_dtype[static_cast<size_t>(dtype)];
  // Convolutions multiply f32 values.
  if (const ProductModel* f32 = products.by_dtype[static_cast<size_t>(DType::kF32)]; f32 && is_convolution(node)) {
    model = f32;
  }
  require<InvalidArgument>(model != nullptr,
                           "device {} of the machine has no \"products\" for {} weights, which {} needs; probe the "
                           "machine again, or add a \"default\" to the \"rates\" of the device",
                           device.name, name_of(dtype), node.name);
  return *model;
}

/// Number of rows of keys and values that a query reads.
double visible_rows(const Tensor& node, double kv_rows) {
  const double all = as_double(node.src[1]->shape[1]);
  const auto& params = std::get<AttentionParams>(node.params);
  if (params.parts > 0) kv_rows /= as_double(params.parts);
  double rows = kv_rows > 0 ? std::min(kv_rows, all) : all;
  if (params.window > 0) rows = std::min(rows, as_double(params.window));
  return rows;
}

double kv_bytes(const Tensor& node, double rows) {
  const Tensor &keys = *node.src[1], &values = *node.src[2];
  const double all = as_double(keys.shape[1]);
  if (all == 0) return 0;
  // If each row of values is the beginning of a row of keys, one read covers both rows.
  const bool within = keys.storage() == values.storage() && keys.view_offset == values.view_offset;
  const double bytes = within ? std::max(bytes_of(keys), bytes_of(values)) : bytes_of(keys) + bytes_of(values);
  // Each sequence has its own rows.
  const double sequences = node.src[6] == nullptr ? 1 : as_double(node.src[6]->shape[1]);
  return bytes * rows / all * sequences;
}

/// Seconds to process `amount` at `rate`; 0 if the rate is unknown.
double ratio(double amount, double rate) {
  return rate > 0 ? amount / rate : 0;
}

NodeCost attention_cost(const DeviceModel& device, const Tensor& node, double kv_rows, bool in_cache) {
  const Tensor &keys = *node.src[1], &values = *node.src[2];
  const double rows = visible_rows(node, kv_rows);
  const double bytes = kv_bytes(node, rows);
  const double depth = as_double(keys.shape[0]) + as_double(values.shape[0]);
  const double operations = 2 * depth * rows * as_double(node.rows());
  const double seconds = std::max(ratio(bytes, device.attention_bandwidth), ratio(operations, device.attention_rate));
  return {seconds, in_cache ? 0 : bytes};
}

/// Number of multiplications and additions for all tokens: the state times k, the update of the state, and the state
/// times q.
double delta_operations(const Tensor& node) {
  return 6 * as_double(node.shape[0]) * as_double(node.src[2]->elements());
}

/// Bytes that an op without weights reads from source i. Ops with a state read at most one slot per sequence.
double source_bytes(const Tensor& node, size_t i) {
  const bool is_state = (node.op == Op::kCausalConv && i == 2) || (node.op == Op::kGatedDelta && i == 5);
  const double all = bytes_of(*node.src[i]);
  if (!is_state) return all;
  const Tensor& rows = *node.src[node.op == Op::kGatedDelta ? 2 : 0];  // the result has these rows and the new states
  return std::min(all, bytes_of(node) - bytes_of(rows));
}

/// Bytes that an op without weights reads and writes.
double activation_bytes(const Tensor& node) {
  // get_rows reads only the selected rows of a table, and a cache write writes only the new rows.
  if (node.op == Op::kGetRows) {
    return bytes_of(node) + bytes_of(*node.src[1]) + as_double(node.elements()) * element_bytes(node.src[0]->dtype);
  }
  if (info(node.op).alias == Alias::kWrites) {
    const Tensor& rows = *node.src[1];
    const double ids = node.src.size() > 2 ? bytes_of(*node.src[2]) : 0;
    return bytes_of(rows) + ids + as_double(rows.elements()) * element_bytes(node.dtype);
  }
  double bytes = bytes_of(node);
  for (size_t i = 0; i < node.src.size(); ++i) {
    if (node.src[i] != nullptr) bytes += source_bytes(node, i);
  }
  return bytes;
}

}  // namespace

double weight_bytes(const Tensor& node) {
  if (!is_executed(node) || (node.op != Op::kMulMat && node.op != Op::kMulMatId && !is_convolution(node))) return 0;
  const double part = node.op == Op::kMulMatId ? used_experts(*node.src[0], *node.src[2]) : 1;
  return part * bytes_of(*node.src[0]);
}

double used_experts(const Tensor& experts, const Tensor& ids) {
  const double all = as_double(experts.shape[2]), taken = std::min(as_double(ids.shape[0]), all);
  return all == 0 ? 0 : 1 - std::pow(1 - taken / all, as_double(ids.shape[1]));
}

bool is_executed(const Tensor& node) {
  return !node.empty() && info(node.op).kind == OpKind::kCompute;
}

ProductTable::ProductTable(const DeviceModel& device) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto found = device.products.find(std::string(name_of(static_cast<DType>(i))));
    const bool known =
        found != device.products.end() && !(found->second.streamed.empty() && found->second.cached.empty());
    by_dtype[static_cast<size_t>(i)] = known ? &found->second : nullptr;
  }
}

NodeCost node_cost(const DeviceModel& device, const ProductTable& products, const Tensor& node, double kv_rows,
                   bool in_cache, int64_t experts) {
  if (!is_executed(node)) return {};
  NodeCost cost;
  if (node.op == Op::kMulMat || node.op == Op::kMulMatId || is_convolution(node)) {
    const Product product = node.op == Op::kMulMat ? product_of(node)
                            : is_convolution(node)
                                ? convolution_of(node)
                                : expert_product_of(node, all_experts(node, experts), as_double(node.src[2]->shape[1]));
    const ProductModel& model = product_model(device, products, node);
    cost.seconds = product.elements * model.seconds(product.columns, in_cache);
    cost.bytes = in_cache ? 0 : product.elements * element_bytes(node.src[0]->dtype);
  } else if (node.op == Op::kAttention) {
    cost = attention_cost(device, node, kv_rows, in_cache);
  } else {
    cost.seconds = ratio(activation_bytes(node), device.activation_bandwidth);
    // With many tokens, attention_rate limits the speed. With few tokens, reads of the state limit the speed.
    if (node.op == Op::kGatedDelta) {
      cost.seconds = std::max(cost.seconds, ratio(delta_operations(node), device.attention_rate));
    }
  }
  cost.seconds += device.op_seconds;
  return cost;
}

NodeCost node_cost(const DeviceModel& device, const Tensor& node, double kv_rows, bool in_cache) {
  return node_cost(device, ProductTable(device), node, kv_rows, in_cache);
}

double pair_seconds(const DeviceModel& device, const ProductTable& products, const Tensor& node, bool in_cache,
                    int64_t experts) {
  if (!is_executed(node) || experts == 0) return 0;
  const Tensor &weights = *node.src[0], &ids = *node.src[2];
  const ProductModel& model = product_model(device, products, node);
  const auto seconds = [&](double tokens) {
    const Product product = expert_product_of(node, experts, tokens);
    return product.elements > 0 ? product.elements * model.seconds(product.columns, in_cache) : 0.0;
  };
  const double tokens = as_double(ids.shape[1]);
  const double of_a_token =
      as_double(std::min(ids.shape[0], experts)) * as_double(weights.shape[2]) / as_double(experts);
  if (of_a_token == 0) return 0;
  // All experts of one token are different, so each pair of the token takes the same time.
  const double more = tokens <= 1 ? seconds(1) : seconds(tokens + 1) - seconds(tokens);
  return std::max(0.0, more) / of_a_token;
}

double working_set(const Graph& graph, double kv_rows) {
  std::vector<std::pair<const Tensor*, double>> read;
  for (const Tensor* node : graph.nodes()) {
    if (!is_executed(*node)) continue;
    if (node->op == Op::kMulMat || node->op == Op::kMulMatId || is_convolution(*node)) {
      read.emplace_back(node->src[0]->storage(), bytes_of(*node->src[0]));
    } else if (node->op == Op::kAttention) {
      read.emplace_back(node, kv_bytes(*node, visible_rows(*node, kv_rows)));
    }
  }
  // If several nodes read the same weight, only the largest byte count is added.
  std::sort(read.begin(), read.end());
  double bytes = 0;
  for (size_t i = 0; i < read.size(); ++i) {
    if (i + 1 == read.size() || read[i].first != read[i + 1].first) bytes += read[i].second;
  }
  return bytes;
}

}  // namespace shoal::machine
