#include "tests/cuda/nccl_standin/world.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "tests/cuda/nccl_standin/standin.h"

namespace shoal::nccl_standin {
namespace {

template <class T, class Sum>
Bytes sum_of(const std::vector<Bytes>& parts) {
  Bytes result(parts[0].size());
  for (size_t at = 0; at < result.size(); at += sizeof(T)) {
    Sum total{};
    for (size_t part = 0; part < parts.size(); ++part) {
      T value;
      std::memcpy(&value, parts[part].data() + at, sizeof(T));
      total = part == 0 ? static_cast<Sum>(value) : static_cast<Sum>(total + static_cast<Sum>(value));
    }
    const T rounded = static_cast<T>(total);
    std::memcpy(result.data() + at, &rounded, sizeof(T));
  }
  return result;
}

bool is_letter(const Operation& operation) {
  return operation.kind == Kind::kSend || operation.kind == Kind::kRecv;
}

bool agree(const Header& a, const Header& b) {
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

/// Sums the ranks' addends in rank order. Floats are summed in f32; integer sums wrap around.
static Bytes sum(const std::vector<Bytes>& parts, DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return sum_of<float, float>(parts);
    case DataType::kFloat16:
      return sum_of<__half, float>(parts);
    case DataType::kBFloat16:
      return sum_of<__nv_bfloat16, float>(parts);
    case DataType::kInt32:
      return sum_of<uint32_t, uint32_t>(parts);
    default:
      return sum_of<uint8_t, uint8_t>(parts);
  }
}

World::World(const std::string& id, int ranks)
    : gpus(static_cast<size_t>(ranks), -1),
      processes(static_cast<size_t>(ranks)),
      gone(static_cast<size_t>(ranks)),
      path_(id),
      file_(open(id.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600)) {}

void World::settle() {
  unlink(path_.c_str());
  if (file_ >= 0 && !is_shared()) close(std::exchange(file_, -1));
}

bool World::is_whole() const {
  return std::none_of(gpus.begin(), gpus.end(), [](int gpu) { return gpu < 0; });
}

bool World::is_shared() const {
  return !is_whole() || std::any_of(processes.begin(), processes.end(), [](int one) { return one != getpid(); });
}

void World::give(const Parcel& parcel) {
  tell_others(parcel);
  apply(parcel, getpid());
}

void World::tell_others(const Parcel& parcel) {
  if (!is_shared()) return;
  Header header = parcel.header;
  header.process = getpid(), header.size = parcel.data.size();
  Bytes bytes(sizeof(header) + parcel.data.size());
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::copy(parcel.data.begin(), parcel.data.end(), bytes.begin() + sizeof(header));
  if (write(file_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) is_lost = true;
}

void World::look() {
  if (!is_shared()) return;
  struct stat now {};
  fstat(file_, &now);
  while (static_cast<size_t>(now.st_size) >= read_ + sizeof(Header)) {
    Header header{};
    if (pread(file_, &header, sizeof(header), static_cast<off_t>(read_)) != sizeof(header)) break;
    const size_t end = read_ + sizeof(header) + header.size;
    if (static_cast<size_t>(now.st_size) < end) break;
    if (header.process != getpid()) {
      Parcel parcel{header, Bytes(header.size)};
      const auto at = static_cast<off_t>(read_ + sizeof(header));
      if (pread(file_, parcel.data.data(), header.size, at) != static_cast<ssize_t>(header.size)) break;
      apply(std::move(parcel), header.process);
    }
    read_ = end;
  }
  for (size_t rank = 0; rank < size(); ++rank) {
    if (gpus[rank] >= 0 && !gone[rank] && kill(processes[rank], 0) != 0) is_lost = true;
  }
}

void World::wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done) {
  for (look(); !done(); look()) changed.wait_for(lock, std::chrono::microseconds(is_shared() ? 200 : 100'000));
}

void World::erase(uint64_t number) {
  const auto here = static_cast<size_t>(std::count(processes.begin(), processes.end(), getpid()));
  const Meeting& meeting = meetings[number];
  if (meeting.arrived == size() && meeting.done == here) meetings.erase(number);
}

void World::apply(Parcel parcel, int process) {
  const Header& header = parcel.header;
  const auto rank = static_cast<size_t>(header.rank);
  if (header.what == Header::kHello) gpus[rank] = header.root, processes[rank] = process;
  if (header.what == Header::kFinal) gone[rank] = true;
  if (header.what == Header::kLetter && processes[static_cast<size_t>(header.root)] == getpid()) {
    letters[{header.rank, header.root}].push_back(std::move(parcel.data));
  }
  if (header.what == Header::kPart) apply_part(std::move(parcel));
  changed.notify_all();
}

void World::apply_part(Parcel parcel) {
  const Header& header = parcel.header;
  Meeting& meeting = meetings[header.number];
  if (meeting.arrived == 0) {
    meeting.parts.resize(size());
    meeting.like = header;
  } else if (!agree(meeting.like, header)) {
    shoal_nccl_standin()->report("rank " + std::to_string(header.rank) + ", collective number " +
                                 std::to_string(header.number) + ": differs from the collective of the other ranks");
    return;  // this collective never completes
  }
  meeting.parts[static_cast<size_t>(header.rank)] = std::move(parcel.data);
  ++meeting.arrived;
  erase(header.number);
}

}  // namespace shoal::nccl_standin

namespace shoal::collectives::nccl {

using nccl_standin::Bytes;
using nccl_standin::bytes_of;
using nccl_standin::Header;
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
  if (shoal_nccl_standin()->connects(rank)) world->give({{.what = Header::kHello, .rank = rank, .root = gpu}});
  world->wait(lock, [this] { return ended || world->is_whole(); });
  world->settle();
  return ended ? Result::kInternalError : Result::kSuccess;
}

Result Comm::finalize() {
  std::unique_lock lock(world->mutex);
  world->wait(lock, [this] { return ended || world->is_lost || on_way_ == 0; });
  world->give({{.what = Header::kFinal, .rank = rank}});
  world->wait(lock, [this] {
    const bool are_all = std::all_of(world->gone.begin(), world->gone.end(), [](bool gone) { return gone; });
    return ended || world->is_lost || are_all;
  });
  return Result::kSuccess;
}

void Comm::end() {
  {
    const std::lock_guard lock(world->mutex);
    ended = true;
    world->settle();
  }
  world->changed.notify_all();
  if (worker_.joinable()) worker_.join();
  while (use_.use_count() > 1) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

void Comm::run(const std::vector<Operation>& operations) {
  std::unique_lock lock(world->mutex);
  if (shoal_nccl_standin()->stalls(rank)) world->wait(lock, [this] { return ended.load(); });
  if (ended) return;
  std::vector<uint64_t> numbers;
  for (const Operation& operation : operations) numbers.push_back(send(operation));
  for (size_t i = 0; i < operations.size(); ++i) {
    if (!receive(operations[i], numbers[i], lock)) return;
  }
}

uint64_t Comm::send(const Operation& operation) {
  const auto* in = static_cast<const std::byte*>(operation.in);
  const size_t bytes = operation.count * bytes_of(operation.type);
  const bool sends = operation.kind != Kind::kRecv && (operation.kind != Kind::kBroadcast || operation.root == rank);
  const size_t parts = operation.kind == Kind::kReduceScatter ? world->size() : 1;
  const Header header{.what = is_letter(operation) ? Header::kLetter : Header::kPart,
                      .rank = rank,
                      .kind = operation.kind,
                      .type = operation.type,
                      .root = operation.root,
                      .number = is_letter(operation) ? 0 : ++meetings_,
                      .count = operation.count};
  if (sends || !is_letter(operation)) give({header, sends ? Bytes(in, in + bytes * parts) : Bytes()});
  return header.number;
}

// If the rank is aborted, its delayed messages are lost.
void Comm::give(Parcel parcel) {
  const char* text = std::getenv("SHOAL_NCCL_STANDIN_DELAY");
  if (text == nullptr) return world->give(parcel);
  world->apply(parcel, getpid());
  ++on_way_;
  const std::chrono::milliseconds delay(std::atoi(text));
  std::thread([self = shared_from_this(), parcel = std::move(parcel), delay] {
    std::this_thread::sleep_for(delay);
    const std::lock_guard lock(self->world->mutex);
    if (!self->ended) self->world->tell_others(parcel);
    --self->on_way_;
    self->world->changed.notify_all();
  }).detach();
}

bool Comm::receive(const Operation& operation, uint64_t number, std::unique_lock<std::mutex>& lock) {
  if (operation.kind == Kind::kSend) return true;
  if (operation.kind == Kind::kRecv) {
    auto& letters = world->letters[{operation.root, rank}];
    world->wait(lock, [&] { return ended || !letters.empty(); });
    if (ended) return false;
    const Bytes letter = std::move(letters.front());
    letters.pop_front();
    if (letter.size() != operation.count * bytes_of(operation.type)) {
      shoal_nccl_standin()->report("rank " + std::to_string(rank) + " expected a different number of bytes");
      return true;
    }
    std::memcpy(operation.out, letter.data(), letter.size());
    return true;
  }
  Meeting& meeting = world->meetings[number];
  // As in NCCL, the root of a broadcast does not wait until the other ranks have received the data.
  const bool waits = operation.kind != Kind::kBroadcast || operation.root != rank;
  world->wait(lock, [&] { return ended || !waits || meeting.arrived == world->size(); });
  if (ended) return false;
  take_result(operation, meeting);
  ++meeting.done;
  world->erase(number);
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
