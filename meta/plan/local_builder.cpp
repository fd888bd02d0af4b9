#include "meta/plan/local_builder.h"

#include <fmt/format.h>

#include <algorithm>

namespace shoal::meta {

LocalBuilder::LocalBuilder(int ranks, const std::string& name) : begin_(ranks, 0), cuts_(ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    graphs_.push_back(std::make_unique<Graph>(fmt::format("{}@{}", name, rank)));
  }
}

void LocalBuilder::close_compute() {
  Step step;
  bool runs = false;
  for (int rank = 0; rank < ranks(); ++rank) {
    const auto nodes = graphs_[rank]->nodes();
    const int end = static_cast<int>(nodes.size());
    step.ranges.push_back({begin_[rank], end});
    runs |=
        std::any_of(nodes.begin() + begin_[rank], nodes.end(), [](const Tensor* node) { return !is_view(node->op); });
    begin_[rank] = end;
  }
  if (runs) steps_.push_back(std::move(step));
}

Locals LocalBuilder::collective(Collective kind, const Locals& sources, std::vector<int64_t> counts,
                                const std::string& name, int64_t bytes) {
  // A collective reads plain memory, but a device may store weights in its own format. The result of a copy has the
  // standard format, so weights are copied before the collective.
  Locals read = sources;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (sources[rank]->storage()->role != Role::kWeight) continue;
    read[rank] = graph(rank).add_node(Op::kContiguous, {}, {sources[rank]});
  }
  close_compute();
  Step step{StepKind::kCollective, {}, kind, name, sources[0]->dtype, bytes};
  Locals results;
  for (int rank = 0; rank < ranks(); ++rank) {
    Graph& local = graph(rank);
    const int index = static_cast<int>(local.nodes().size());
    results.push_back(shoal::collective(local, kind, read[rank], {rank, counts},
                                        fmt::format("{}.{}.{}", name, name_of(kind), index)));
    step.ranges.push_back({index, index + 1});
    begin_[rank] = index + 1;
  }
  steps_.push_back(std::move(step));
  collective_bytes_ += bytes;
  return results;
}

void LocalBuilder::cut() {
  close_compute();
  segments_.push_back(static_cast<int>(steps_.size()));
  for (int rank = 0; rank < ranks(); ++rank) cuts_[rank].push_back(begin_[rank]);
}

std::vector<Step> LocalBuilder::finish() {
  close_compute();
  return std::move(steps_);
}

}  // namespace shoal::meta
