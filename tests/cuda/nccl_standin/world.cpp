#include "tests/cuda/nccl_standin/world.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "tests/cuda/nccl_standin/faults.h"

namespace shoal::nccl_standin {
namespace {

template <class T, class Sum, class From, class To>
Bytes sum_of(const std::vector<Bytes>& parts, From from, To to) {
  Bytes result(parts[0].size());
  for (size_t at = 0; at < result.size(); at += sizeof(T)) {
    Sum total{};
    for (size_t part = 0; part < parts.size(); ++part) {
      T value;
      std::memcpy(&value, parts[part].data() + at, sizeof(T));
      total = part == 0 ? from(value) : static_cast<Sum>(total + from(value));
    }
    const T rounded = to(total);
    std::memcpy(result.data() + at, &rounded, sizeof(T));
  }
  return result;
}

bool is_letter(const Operation& operation) {
  return operation.kind == Kind::kSend || operation.kind == Kind::kRecv;
}

bool agree(const Operation& a, const Operation& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.root == b.root;
}

}  // namespace

size_t bytes_of(DataType type) {
  switch (type) {
    case DataType::kInt8:
      return 1;
    case DataType::kFloat16:
    case DataType::kBFloat16:
      return 2;
    default:
      return 4;
  }
}

Bytes sum(const std::vector<Bytes>& parts, DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return sum_of<float, float>(
          parts, [](float x) { return x; }, [](float x) { return x; });
    case DataType::kFloat16:
      return sum_of<__half, float>(
          parts, [](__half x) { return __half2float(x); }, [](float x) { return __float2half_rn(x); });
    case DataType::kBFloat16:
      return sum_of<__nv_bfloat16, float>(
          parts, [](__nv_bfloat16 x) { return __bfloat162float(x); }, [](float x) { return __float2bfloat16_rn(x); });
    case DataType::kInt32:
      return sum_of<uint32_t, uint32_t>(
          parts, [](uint32_t x) { return x; }, [](uint32_t x) { return x; });
    default:
      return sum_of<uint8_t, uint8_t>(
          parts, [](uint8_t x) { return x; }, [](uint8_t x) { return x; });
  }
}

void World::add(const std::shared_ptr<Line>& line) {
  const std::lock_guard lock(mutex);
  lines.push_back(line);
  for (size_t rank = 0; rank < size(); ++rank) {
    const auto number = static_cast<int32_t>(rank);
    if (gpus[rank] >= 0) line->outbox.push_back({.what = Parcel::kHello, .rank = number, .root = gpus[rank]});
    if (gone[rank]) line->outbox.push_back({.what = Parcel::kFinal, .rank = number});
  }
}

void World::give(Parcel parcel) {
  for (const auto& line : lines) line->outbox.push_back(parcel);
  apply(std::move(parcel));
}

void World::take(Parcel parcel, const Line* from) {
  const std::lock_guard lock(mutex);
  for (const auto& line : lines) {
    if (line.get() != from) line->outbox.push_back(parcel);
  }
  apply(std::move(parcel));
}

// Ranks of the process that has gone, or that are behind it.
void World::lose(const Line& line) {
  const std::lock_guard lock(mutex);
  std::erase_if(lines, [&](const auto& one) { return one.get() == &line; });
  for (size_t rank = 0; rank < size(); ++rank) {
    if (!own[rank] && !gone[rank]) is_lost = true;
  }
  changed.notify_all();
}

void World::forget(uint64_t number) {
  const auto here = static_cast<size_t>(std::count(own.begin(), own.end(), true));
  const Meeting& meeting = meetings[number];
  if (meeting.arrived == size() && meeting.done == here) meetings.erase(number);
}

bool World::is_quiet() const {
  return std::all_of(lines.begin(), lines.end(),
                     [](const auto& line) { return line->outbox.empty() && !line->is_sending; });
}

void World::apply(Parcel parcel) {
  const auto rank = static_cast<size_t>(parcel.rank);
  if (parcel.what == Parcel::kHello) gpus[rank] = parcel.root;
  if (parcel.what == Parcel::kFinal) gone[rank] = true;
  if (parcel.what == Parcel::kLetter && own[static_cast<size_t>(parcel.root)]) {
    letters[{parcel.rank, parcel.root}].push_back(std::move(parcel.data));
  }
  if (parcel.what == Parcel::kPart) apply_part(std::move(parcel));
  changed.notify_all();
}

void World::apply_part(Parcel parcel) {
  const Operation operation{.kind = static_cast<Kind>(parcel.kind),
                            .count = parcel.count,
                            .type = static_cast<DataType>(parcel.type),
                            .root = parcel.root};
  Meeting& meeting = meetings[parcel.number];
  if (meeting.arrived == 0) {
    meeting.parts.resize(size());
    meeting.here.resize(size());
    meeting.like = operation;
  } else if (!agree(meeting.like, operation)) {
    Faults::instance().report("rank " + std::to_string(parcel.rank) + " has another collective number " +
                              std::to_string(parcel.number) + " than the others");
    return;  // it never takes place
  }
  meeting.parts[static_cast<size_t>(parcel.rank)] = std::move(parcel.data);
  meeting.here[static_cast<size_t>(parcel.rank)] = true;
  ++meeting.arrived;
  forget(parcel.number);
}

}  // namespace shoal::nccl_standin

namespace shoal::collectives::nccl {

using nccl_standin::Bytes;
using nccl_standin::bytes_of;
using nccl_standin::Faults;
using nccl_standin::is_letter;
using nccl_standin::Kind;
using nccl_standin::Operation;
using nccl_standin::Parcel;
using nccl_standin::sum;

void Comm::start(std::function<Result()> work) {
  if (worker_.joinable()) worker_.join();
  in_progress = true;
  worker_ = std::thread([this, work = std::move(work)] {
    const Result result = work();
    if (result != Result::kSuccess) error = result;
    in_progress = false;
  });
}

Result Comm::queue(cudaStream_t stream, std::vector<Operation> operations) {
  const auto work = [self = shared_from_this(), use = use_, operations = std::move(operations)] {
    self->run(operations);
  };
  return cuda.enqueue(stream, work) == cudaSuccess ? Result::kSuccess : Result::kUnhandledCudaError;
}

Result Comm::meet_all(int gpu) {
  std::unique_lock lock(world->mutex);
  std::shared_ptr<nccl_standin::Line> line;
  if (!nccl_standin::is_own(world->id) && !std::exchange(world->has_joined, true)) {
    line = nccl_standin::join(world->id, world->size());
    if (line == nullptr) return Result::kRemoteError;
  }
  world->own[static_cast<size_t>(rank)] = true;
  if (line != nullptr) {
    lock.unlock();
    world->add(line);
    line->start(world);
    lock.lock();
  }
  if (Faults::instance().connects(rank)) world->give({.what = Parcel::kHello, .rank = rank, .root = gpu});
  world->changed.wait(lock, [this] {
    return ended || std::all_of(world->gpus.begin(), world->gpus.end(), [](int one) { return one >= 0; });
  });
  return ended ? Result::kInternalError : Result::kSuccess;
}

Result Comm::finalize() {
  std::unique_lock lock(world->mutex);
  world->give({.what = Parcel::kFinal, .rank = rank});
  is_final = true;
  world->changed.wait(lock, [this] {
    const bool are_all = std::all_of(world->gone.begin(), world->gone.end(), [](bool gone) { return gone; });
    return ended || world->is_lost || (are_all && world->is_quiet());
  });
  return Result::kSuccess;
}

void Comm::end() {
  {
    const std::lock_guard lock(world->mutex);
    ended = true;
    for (const auto& line : world->lines) {
      if (!is_final) std::erase_if(line->outbox, [this](const Parcel& parcel) { return parcel.rank == rank; });
    }
  }
  world->changed.notify_all();
  if (worker_.joinable()) worker_.join();
  while (use_.use_count() > 1) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

void Comm::run(const std::vector<Operation>& operations) {
  std::unique_lock lock(world->mutex);
  if (Faults::instance().stalls(rank)) world->changed.wait(lock, [this] { return ended.load(); });
  if (ended) return;
  std::vector<uint64_t> numbers;
  for (const Operation& operation : operations) numbers.push_back(send(operation));
  world->changed.notify_all();
  for (size_t i = 0; i < operations.size(); ++i) {
    if (!receive(operations[i], numbers[i], lock)) return;
  }
}

uint64_t Comm::send(const Operation& operation) {
  const auto* in = static_cast<const std::byte*>(operation.in);
  const size_t bytes = operation.count * bytes_of(operation.type);
  const bool sends = operation.kind != Kind::kRecv && (operation.kind != Kind::kBroadcast || operation.root == rank);
  const size_t parts = operation.kind == Kind::kReduceScatter ? world->size() : 1;
  Parcel parcel{.what = is_letter(operation) ? Parcel::kLetter : Parcel::kPart,
                .rank = rank,
                .kind = static_cast<int32_t>(operation.kind),
                .type = static_cast<int32_t>(operation.type),
                .root = operation.root,
                .count = operation.count,
                .data = sends ? Bytes(in, in + bytes * parts) : Bytes()};
  if (!is_letter(operation)) parcel.number = ++meetings_;
  const uint64_t number = parcel.number;
  if (sends || !is_letter(operation)) world->give(std::move(parcel));
  return number;
}

bool Comm::receive(const Operation& operation, uint64_t number, std::unique_lock<std::mutex>& lock) {
  if (operation.kind == Kind::kSend) return true;
  if (operation.kind == Kind::kRecv) {
    auto& letters = world->letters[{operation.root, rank}];
    world->changed.wait(lock, [&] { return ended || !letters.empty(); });
    if (ended) return false;
    const Bytes letter = std::move(letters.front());
    letters.pop_front();
    if (letter.size() != operation.count * bytes_of(operation.type)) {
      Faults::instance().report("rank " + std::to_string(rank) + " expected another number of bytes");
      return true;
    }
    std::memcpy(operation.out, letter.data(), letter.size());
    return true;
  }
  Meeting& meeting = world->meetings[number];
  // Who only sends is done before the others have it, as with NCCL.
  const bool waits = operation.kind != Kind::kBroadcast || operation.root != rank;
  world->changed.wait(lock, [&] { return ended || !waits || meeting.arrived == world->size(); });
  if (ended) return false;
  take_result(operation, meeting);
  ++meeting.done;
  world->forget(number);
  return true;
}

void Comm::take_result(const Operation& operation, const Meeting& meeting) const {
  auto* out = static_cast<std::byte*>(operation.out);
  const size_t bytes = operation.count * bytes_of(operation.type);
  if (operation.kind == Kind::kBroadcast) {
    std::memcpy(out, meeting.parts[static_cast<size_t>(operation.root)].data(), bytes);
  } else if (operation.kind == Kind::kAllGather) {
    for (const Bytes& part : meeting.parts) std::memcpy(out, part.data(), bytes), out += bytes;
  } else if (operation.kind == Kind::kReduceScatter) {
    std::vector<Bytes> own;
    for (const Bytes& part : meeting.parts) {
      const std::byte* begin = part.data() + static_cast<size_t>(rank) * bytes;
      own.emplace_back(begin, begin + bytes);
    }
    std::memcpy(out, sum(own, operation.type).data(), bytes);
  } else if (operation.kind == Kind::kAllReduce || operation.root == rank) {
    std::memcpy(out, sum(meeting.parts, operation.type).data(), bytes);
  }
}

}  // namespace shoal::collectives::nccl
