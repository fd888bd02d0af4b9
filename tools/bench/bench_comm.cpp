#include "tools/bench/bench_comm.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>

#include "base/error.h"
#include "collectives/factory.h"
#include "devices/allocate.h"
#include "graph/graph.h"
#include "processes/remote_device.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/output.h"

namespace shoal::tools {
namespace {

using collectives::Call;

/// The memory of one rank for one CommCase.
struct RankData {
  TensorContext tensors;
  std::unique_ptr<Buffer> buffer;
  Tensor* in = nullptr;
  Tensor* out = nullptr;

  RankData(Device& device, const CommCase& c) {
    in = tensors.add("in", c.dtype, {c.elements_in(), 1, 1, 1});
    out = tensors.add("out", c.dtype, {c.elements_out(), 1, 1, 1});
    buffer = allocate_tensors(tensors.tensors(), device.buffer_type(), Usage::kAny);
  }
};

/// Returns a copy of the implementation that uses these thresholds instead of measured thresholds.
CommImplementation with(const CommImplementation& implementation, const collectives::Thresholds& thresholds) {
  const auto make = [make = implementation.make, thresholds](std::span<Backend* const> ranks,
                                                             const collectives::Options& options) {
    collectives::Options own = options;
    own.thresholds = thresholds;
    return make(ranks, own);
  };
  return {implementation.name, make};
}

}  // namespace

/// The memory and the collective calls of all ranks for one CommCase.
class CommBench::Run {
 public:
  Run(CommBench& bench, collectives::Communicator& communicator, const CommCase& c)
      : bench_(bench), communicator_(communicator), case_(c) {
    for (Device* device : bench.devices_) {
      data_.push_back(is_remote(*device) ? nullptr : std::make_unique<RankData>(*device, c));
    }
    counts_.assign(info(c.kind).counts(c.ranks), c.part);
    for (const auto& data : data_) {
      calls_.emplace_back();
      if (data == nullptr) continue;
      calls_.back() = {c.kind,  c.dtype, data->in->data, data->out->data, counts_.empty() ? c.part : 0,
                       counts_, c.root,  "benchmark"};
    }
  }

  void measure(const CommBenchOptions& options, const std::function<bool()>& stop, CommResult& result) {
    const auto go_on = [&] {
      if (stop && stop()) throw Interrupted();
    };
    fill();
    go_on();
    run(options.warmup);
    go_on();
    bench_.gather("");  // a barrier, so that all processes begin together
    const auto start = std::chrono::steady_clock::now();
    run(options.iterations);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    result.us = bench_.largest(time.count() * 1e6 / options.iterations);
    if (options.check) result.wrong = check(go_on);
  }

 private:
  /// Writes the inputs, and fills the outputs with bytes that never occur in a result.
  void fill() {
    std::vector<std::byte> values(case_.bytes(case_.elements_in()));
    for (int rank = 0; rank < case_.ranks; ++rank) {
      RankData* const data = data_[static_cast<size_t>(rank)].get();
      if (data == nullptr) continue;
      fill_values(case_.dtype, rank, 0, values);
      tensor_set(*data->in, values.data(), 0, values.size());
      data->out->buffer->memset(*data->out, 0xff, 0, data->out->bytes());
    }
  }

  /// Queues the collective `times` times on every rank as one batch, as meta devices do, and waits once for all ranks.
  void run(int times) {
    std::vector<std::unique_ptr<HeldBackend>> held;
    for (Backend* backend : bench_.backends_) held.push_back(std::make_unique<HeldBackend>(*backend));
    for (int i = 0; i < times; ++i) {
      for (size_t rank = 0; rank < data_.size(); ++rank) {
        if (data_[rank] != nullptr) communicator_.enqueue(static_cast<int>(rank), calls_[rank]);
      }
    }
    held.clear();
    bench_.synchronize();
  }

  template <class GoOn>
  int64_t check(const GoOn& go_on) {
    fill();
    run(1);
    std::vector<std::byte> out(case_.bytes(case_.elements_out()));
    int64_t wrong = 0;
    for (int rank = 0; rank < case_.ranks; ++rank) {
      go_on();
      const RankData* const data = data_[static_cast<size_t>(rank)].get();
      if (data == nullptr) continue;
      tensor_get(*data->out, out.data(), 0, out.size());
      wrong += count_wrong(case_, rank, out, allowed_error(communicator_.name(), case_));
    }
    return bench_.sum(wrong);
  }

  CommBench& bench_;
  collectives::Communicator& communicator_;
  const CommCase case_;
  std::vector<std::unique_ptr<RankData>> data_;  ///< nullptr for a rank of another process
  std::vector<int64_t> counts_;
  std::vector<Call> calls_;
};

std::vector<std::string> known_implementations() {
  return {"auto", "host", "mpi", "p2p", "nccl", "staged"};
}

CommBench::CommBench(const std::vector<Device*>& devices, ProcessGroup* group)
    : devices_(devices), group_(group), factory_(collectives::communicator_for(devices)) {
  for (Device* device : devices_) {
    owned_.push_back(device->init());
    backends_.push_back(owned_.back().get());
  }
}

CommBench::~CommBench() {
  try {
    synchronize();  // a communicator must not be destroyed while its work is queued
  } catch (const Error&) {
    // The failure was already reported.
  }
}

CommImplementation CommBench::named(const std::string& name) const {
  return {name, [name, factory = factory_](std::span<Backend* const> ranks, const collectives::Options& options) {
            collectives::Options own = options;
            own.implementation = name;
            auto made = factory(ranks, own);
            require<InvalidArgument>(name == "auto" || made->name() == name,
                                     "{} and the other devices use communicator '{}'", ranks[0]->name(), made->name());
            return made;
          }};
}

std::vector<CommImplementation> CommBench::implementations() {
  std::vector<CommImplementation> working;
  for (const std::string& name : known_implementations()) {
    try {
      communicator(named(name));
      working.push_back(named(name));
    } catch (const Error&) {
      // This implementation does not work on these devices.
    }
  }
  return working;
}

CommImplementation CommBench::implementation(const std::string& name) {
  try {
    communicator(named(name));
    return named(name);
  } catch (const Error& error) {
    std::vector<std::string> names;
    for (const CommImplementation& one : implementations()) names.push_back(one.name);
    fail<InvalidArgument>("--comm {}: {}; these implementations work: {}", name, error.what(), fmt::join(names, ", "));
  }
}

collectives::Communicator& CommBench::communicator(const CommImplementation& implementation) {
  if (communicator_ == nullptr || current_ != implementation.name) {
    drop_communicator();
    communicator_ = implementation.make(backends_, {.processes = group_});
    current_ = implementation.name;
  }
  return *communicator_;
}

void CommBench::drop_communicator() {
  communicator_.reset();
  current_.clear();
}

CommResult CommBench::measure(const CommImplementation& implementation, const CommCase& which,
                              const CommBenchOptions& options, const std::function<bool()>& stop) {
  collectives::Communicator& made = communicator(implementation);
  if (!made.remark().empty() && remarks_.insert(made.remark()).second) {
    write_err(fmt::format("shoal: note: {}\n", made.remark()));
  }
  CommResult result{which, implementation.name, std::string(made.name())};
  Run(*this, made, which).measure(options, stop, result);
  return result;
}

collectives::Thresholds CommBench::calibrate(const CommBenchOptions& options, size_t most_bytes,
                                             const std::function<bool()>& stop) {
  constexpr size_t kSmallest = size_t{4} << 10, kNever = std::numeric_limits<int64_t>::max();
  require<InvalidArgument>(most_bytes >= kSmallest, "{} bytes are too few to compare; use --max-bytes {} or more",
                           most_bytes, kSmallest);
  const CommImplementation peers = implementation("p2p");
  collectives::Thresholds found;
  const auto time = [&](const CommImplementation& one, size_t bytes) {
    return measure(one, case_of_size(Collective::kAllReduce, DType::kF32, ranks(), bytes), options, stop).us;
  };
  const auto time_of_peers = [&](size_t one_shot_to_bytes, size_t bytes) {
    drop_communicator();
    return time(with(peers, {.one_shot_to_bytes = one_shot_to_bytes}), bytes);
  };
  const auto try_nccl = [&]() -> std::optional<CommImplementation> {
    try {
      return implementation("nccl");
    } catch (const InvalidArgument&) {
      return std::nullopt;
    }
  };
  // Doubles the message size until the one-shot algorithm is no longer faster than the two-shot algorithm. If a message
  // is too large for the one-shot algorithm, p2p uses the two-shot algorithm in both measurements (threshold kNever and
  // threshold 0).
  for (size_t bytes = kSmallest; bytes <= most_bytes; bytes *= 2) {
    const bool is_faster = time_of_peers(kNever, bytes) < time_of_peers(0, bytes);
    if (is_faster || !found.one_shot_to_bytes) found.one_shot_to_bytes = is_faster ? bytes : 0;
    if (!is_faster) break;
  }
  if (const auto nccl = try_nccl()) {
    // Halves the message size until NCCL is no longer faster than p2p.
    for (size_t bytes = most_bytes; bytes >= kSmallest; bytes /= 2) {
      const double peers_us = time_of_peers(found.one_shot_to_bytes.value_or(kNever), bytes);
      if (time(*nccl, bytes) >= peers_us) break;
      found.nccl_from_bytes = bytes;
    }
  }
  drop_communicator();
  collectives::save_thresholds(devices_, found);
  return found;
}

std::vector<std::string> CommBench::gather(const std::string& own) const {
  return group_ == nullptr ? std::vector{own} : group_->gather(own, "bench-comm");
}

double CommBench::largest(double own) const {
  double most = own;
  for (const std::string& text : gather(fmt::format("{}", own))) most = std::max(most, std::stod(text));
  return most;
}

int64_t CommBench::sum(int64_t own) const {
  int64_t all = 0;
  for (const std::string& text : gather(fmt::format("{}", own))) all += std::stoll(text);
  return all;
}

void CommBench::synchronize() {
  std::exception_ptr failure;
  for (Backend* backend : backends_) {
    try {
      backend->synchronize();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace shoal::tools
