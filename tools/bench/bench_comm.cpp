#include "tools/bench/bench_comm.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>

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

/// A rank's memory for one case.
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

}  // namespace

/// One case in memory: the calls of all ranks, in place or not.
class CommBench::Run {
 public:
  Run(CommBench& bench, collectives::Communicator& communicator, const CommCase& c)
      : bench_(bench), communicator_(communicator), case_(c) {
    for (Device* device : bench.devices_) {
      data_.push_back(is_remote(*device) ? nullptr : std::make_unique<RankData>(*device, c));
    }
    counts_.assign(info(c.kind).counts(c.ranks), c.part);
  }

  CommTiming measure(bool in_place, const CommBenchOptions& options, const std::function<bool()>& stop) {
    const auto go_on = [&] {
      if (stop && stop()) throw Interrupted();
    };
    set_calls(in_place);
    fill(in_place);
    go_on();
    run(options.warmup);
    go_on();
    bench_.gather("");  // all begin together
    const auto start = std::chrono::steady_clock::now();
    run(options.iterations);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    CommTiming timing;
    timing.us = bench_.largest(time.count() * 1e6 / options.iterations);
    timing.algbw = static_cast<double>(case_.size()) / 1e3 / timing.us;
    timing.busbw = timing.algbw * bus_factor(case_.kind, case_.ranks);
    if (options.check) timing.wrong = check(in_place, go_on);
    return timing;
  }

 private:
  /// Does the rank belong to this process?
  bool is_own(int rank) const { return data_[static_cast<size_t>(rank)] != nullptr; }
  /// Where a rank's own part of an output in place begins, bytes.
  size_t own_offset(int rank) const {
    return info(case_.kind).in_place == InPlace::kOwnPart ? case_.bytes(rank * case_.part) : 0;
  }

  void set_calls(bool in_place) {
    calls_.clear();
    for (int rank = 0; rank < case_.ranks; ++rank) {
      if (!is_own(rank)) {
        calls_.emplace_back();
        continue;
      }
      const RankData& data = *data_[static_cast<size_t>(rank)];
      const std::byte* in = in_place ? data.out->data + own_offset(rank) : data.in->data;
      calls_.push_back({case_.kind, case_.dtype, in, data.out->data, counts_.empty() ? case_.part : 0, counts_,
                        case_.root, "benchmark"});
    }
  }

  /// Fresh inputs; outputs are full of what no result is.
  void fill(bool in_place) {
    std::vector<std::byte> values(case_.bytes(case_.elements_in()));
    for (int rank = 0; rank < case_.ranks; ++rank) {
      if (!is_own(rank)) continue;
      RankData& data = *data_[static_cast<size_t>(rank)];
      fill_values(case_.dtype, rank, 0, values);
      tensor_set(*data.in, values.data(), 0, values.size());
      data.out->buffer->memset(*data.out, 0xff, 0, data.out->bytes());
      const bool gives = info(case_.kind).in != Extent::kOfRoot || rank == case_.root;
      if (in_place && gives) tensor_set(*data.out, values.data(), own_offset(rank), values.size());
    }
  }

  /// Queues the collective this many times on every rank, in one piece as meta devices do, and waits once.
  void run(int times) {
    std::vector<std::unique_ptr<HeldBackend>> held;
    for (Backend* backend : bench_.backends_) held.push_back(std::make_unique<HeldBackend>(*backend));
    for (int i = 0; i < times; ++i) {
      for (int rank = 0; rank < case_.ranks; ++rank) {
        if (is_own(rank)) communicator_.enqueue(rank, calls_[static_cast<size_t>(rank)]);
      }
    }
    held.clear();
    bench_.synchronize();
  }

  template <class GoOn>
  int64_t check(bool in_place, const GoOn& go_on) {
    fill(in_place);
    run(1);
    std::vector<std::byte> out(case_.bytes(case_.elements_out()));
    int64_t wrong = 0;
    for (int rank = 0; rank < case_.ranks; ++rank) {
      go_on();
      if (!is_own(rank)) continue;
      tensor_get(*data_[static_cast<size_t>(rank)]->out, out.data(), 0, out.size());
      wrong += count_wrong(case_, rank, out, allowed_error(communicator_.name(), case_));
    }
    return bench_.sum(wrong);
  }

  CommBench& bench_;
  collectives::Communicator& communicator_;
  const CommCase case_;
  std::vector<std::unique_ptr<RankData>> data_;  ///< nullptr: of a rank of another process
  std::vector<int64_t> counts_;
  std::vector<Call> calls_;
};

int64_t CommResult::wrong() const {
  return out_of_place.wrong.value_or(0) + (in_place ? in_place->wrong.value_or(0) : 0);
}

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
    synchronize();  // a communicator may only go when nothing of it is queued
  } catch (const Error&) {
    // The failure has been reported.
  }
}

CommImplementation CommBench::named(const std::string& name) const {
  return {name, [name, factory = factory_](std::span<Backend* const> ranks, const collectives::Options& options) {
            collectives::Options own = options;
            own.implementation = name;
            auto made = factory(ranks, own);
            require<InvalidArgument>(name == "auto" || made->name() == name, "{} and the others are connected by '{}'",
                                     ranks[0]->name(), made->name());
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
      // Not here.
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
    fail<InvalidArgument>("--comm {}: {}; there are: {}", name, error.what(), fmt::join(names, ", "));
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
  CommResult result{which, implementation.name, std::string(made.name()), {}, {}};
  Run run(*this, made, which);
  result.out_of_place = run.measure(false, options, stop);
  if (info(which.kind).in_place != InPlace::kNever) result.in_place = run.measure(true, options, stop);
  return result;
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
