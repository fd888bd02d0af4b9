// The staged communicator exchanges data in host memory. It uses the host communicator or, with several processes, the
// mpi communicator. A rank whose memory the host cannot access has two additional streams. Stream `in` copies pieces of
// the message to pinned staging buffers; stream `out` copies results back:
//
//   in      read 0 | read 1 |        | read 2 ...        a buffer is refilled after the exchange of its previous piece
//   rank             meet 0 | meet 1 |        | meet 2   the rank's own stream runs the host communicator
//   out                     | write 0| write 1| ...
//
// Each staging buffer has kPieceBytes bytes and is reused by later calls. A rank with host memory has one buffer of
// this size, in which it packs parts. A call that does not fit into a buffer is divided into pieces, in the same way on
// every rank. For each piece, the rank calls the same collective of the host communicator. Each of these calls reads
// and writes contiguous data. The input of a reduce_scatter piece is not contiguous, so the rank packs this input
// first. Examples with 3 ranks and staging buffers of 4 elements:
//
//   all_reduce, broadcast  8 elements: 4, then 4
//   all_gather      counts 6 1 3: the parts one after the other: 4 0 0, then 2 0 0, 0 1 0, 0 0 3
//   reduce_scatter  counts 2 4 2: the same fraction of every part, so that each rank sums a part: 1 2 1, then 1 2 1
//   all_to_all      in round k rank r sends one part to rank r + k and receives one part from rank r - k
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "collectives/communicator.h"
#include "devices/device.h"
#include "devices/host_buffer.h"
#include "processes/remote_device.h"

namespace shoal::collectives {
namespace staged {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr int kStages = 2;

struct Part {
  const void* begin;
  size_t bytes;
};

/// A call of the host communicator for one piece. The Piece is not reused before the call is done.
struct Piece {
  Call call;
  std::vector<int64_t> counts;  ///< counts of `call`, if the piece has its own counts (take_without_counts())
  std::vector<Part> packed;     ///< parts to send; empty if the data to send are contiguous at call.in
  std::atomic<bool> in_use{false};
};

/// Staging buffers for one piece. The events mark the end of the copies and of the exchange.
struct Stage {
  std::unique_ptr<Buffer> in, out;
  std::unique_ptr<Event> filled, exchanged, emptied;
};

/// One rank of this process. Host memory is accessed directly. Other memory is accessed through staging buffers.
class Rank {
 public:
  Rank(Backend& backend, int rank) : backend_(backend), rank_(rank) {
    Device& device = backend.device();
    pageable_ = std::make_unique<HostBufferType>(device);
    if (!backend.has_own_memory()) {
      pack_ = pageable_->allocate(kPieceBytes);
      return;
    }
    BufferType* const pinned = device.host_buffer_type();
    BufferType& type = pinned != nullptr ? *pinned : *pageable_;
    in_ = device.init();
    out_ = device.init();
    begin_ = device.new_event();
    require<InvalidArgument>(begin_ != nullptr, "[staged communicator] {} has no events; use the family's communicator",
                             device.name());
    for (Stage& stage : stages_) {
      stage.filled = device.new_event(), stage.exchanged = device.new_event(), stage.emptied = device.new_event();
      stage.in = type.allocate(kPieceBytes), stage.out = type.allocate(kPieceBytes);
    }
  }
  ~Rank() {
    // Waits for queued work, because this work uses the staging buffers.
    for (Backend* stream : {in_.get(), out_.get()}) {
      if (stream != nullptr) finish_queued(*stream);
    }
  }

  int rank() const { return rank_; }
  size_t stage_bytes() const {
    size_t bytes = pack_ != nullptr ? pack_->size() : 0;
    for (const Stage& stage : stages_) {
      if (stage.in != nullptr) bytes += stage.in->size() + stage.out->size();
    }
    return bytes;
  }

  /// Takes a free piece and initialises it with all arguments of `call`.
  Piece& take(const Call& call) {
    Piece& piece = free_piece();
    piece.call = call;
    piece.call.whole = call_digest(call);
    piece.packed.clear();
    return piece;
  }
  /// Like take(), but the piece has its own counts, which are initially zero. The piece's `count` is the sum of all
  /// counts of `call`. Only messages use this sum.
  Piece& take_without_counts(const Call& call) {
    Piece& piece = take(call);
    piece.call.count = std::accumulate(call.counts.begin(), call.counts.end(), int64_t{0});
    piece.counts.assign(call.counts.size(), 0);
    piece.call.counts = piece.counts;
    return piece;
  }
  /// Queues a piece. The rank reads `in_bytes` bytes and writes `out_bytes` bytes; both numbers are at most
  /// kPieceBytes.
  void queue(Communicator& inner, Piece& piece, size_t in_bytes, size_t out_bytes) {
    check(in_bytes <= kPieceBytes && out_bytes <= kPieceBytes,
          "a transfer that reads {} bytes and writes {} bytes exceeds a staging buffer", in_bytes, out_bytes);
    if (in_ == nullptr) {
      queue_directly(inner, piece);
    } else {
      queue_through_stage(inner, piece, in_bytes, out_bytes);
    }
    const auto give_back = [](void* object, const void*, bool) { static_cast<Piece*>(object)->in_use = false; };
    backend_.enqueue({give_back, &piece, nullptr});
  }

  /// Makes the following pieces wait for the caller's queued work.
  void begin() {
    if (in_ == nullptr) return;
    begin_->record(backend_);
    begin_->wait(*in_);
    begin_->wait(*out_);
  }
  /// Makes the caller's later work wait for the pieces queued so far.
  void end() {
    if (in_ == nullptr) return;
    for (Stage& stage : stages_) stage.emptied->wait(backend_);
    check_copies();
  }

 private:
  void queue_directly(Communicator& inner, Piece& piece) {
    if (!piece.packed.empty()) {
      const auto pack = [](void* object, const void* argument, bool failed) {
        auto* to = static_cast<std::byte*>(object);
        if (failed) return;
        for (const Part& part : static_cast<const Piece*>(argument)->packed) {
          std::memcpy(to, part.begin, part.bytes);
          to += part.bytes;
        }
      };
      backend_.enqueue({pack, pack_->base(), &piece});
      piece.call.in = pack_->base();
    }
    inner.enqueue(rank_, piece.call);
  }

  void queue_through_stage(Communicator& inner, Piece& piece, size_t in_bytes, size_t out_bytes) {
    Stage& stage = stages_[next_++ % kStages];
    stage.exchanged->wait(*in_);
    read(piece, stage.in->base(), in_bytes);
    note_failure(*in_);
    stage.filled->record(*in_);
    stage.filled->wait(backend_);
    stage.emptied->wait(backend_);
    check_copies();
    void* const result = piece.call.out;
    piece.call.in = stage.in->base();
    piece.call.out = stage.out->base();
    inner.enqueue(rank_, piece.call);
    stage.exchanged->record(backend_);
    stage.exchanged->wait(*out_);
    out_->write_bytes_async(result, stage.out->base(), out_bytes);
    note_failure(*out_);
    stage.emptied->record(*out_);
  }

  void read(const Piece& piece, std::byte* to, size_t bytes) {
    if (piece.packed.empty()) return in_->read_bytes_async(piece.call.in, to, bytes);
    for (const Part& part : piece.packed) {
      in_->read_bytes_async(part.begin, to, part.bytes);
      to += part.bytes;
    }
  }

  /// Stores a failure of a copy stream. Copy streams are never synchronized, so no other code detects this failure.
  void note_failure(Backend& stream) {
    const auto note = [](void* object, const void*, bool failed) {
      if (failed) *static_cast<std::atomic<bool>*>(object) = true;
    };
    stream.enqueue({note, &copies_failed_, nullptr});
  }
  /// Fails the rank's own stream if a copy failed. The host communicator then notifies the peers.
  void check_copies() {
    const auto check = [](void* object, const void*, bool failed) {
      const Rank& own = *static_cast<Rank*>(object);
      if (failed || !own.copies_failed_) return;
      fail<DeviceError>("[staged communicator] rank {} ({}) cannot copy between device memory and host memory",
                        own.rank_, own.backend_.name());
    };
    backend_.enqueue({check, this, nullptr});
  }

  Piece& free_piece() {
    for (Piece& piece : pieces_) {
      if (!piece.in_use.exchange(true)) return piece;
    }
    Piece& piece = pieces_.emplace_back();
    piece.in_use = true;
    return piece;
  }

  Backend& backend_;
  const int rank_;
  std::atomic<bool> copies_failed_{false};
  std::unique_ptr<HostBufferType> pageable_;
  std::unique_ptr<Buffer> pack_;  ///< only for a rank with host memory; in use until the exchange of a piece is done
  std::unique_ptr<Event> begin_;
  std::array<Stage, kStages> stages_;
  std::unique_ptr<Backend> in_, out_;
  size_t next_ = 0;
  std::deque<Piece> pieces_;
};

/// Total size in bytes of the staging buffers of one rank on this device. Each stage has one buffer per direction.
size_t stage_bytes_of(Device& device) {
  return (has_host_memory(device) ? 1 : 2 * kStages) * kPieceBytes;
}

std::unique_ptr<Communicator> make_inner(std::span<Backend* const> backends, const Options& options) {
  return options.processes != nullptr ? make_mpi_communicator(backends, options)
                                      : make_host_communicator(backends, options);
}

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(std::span<Backend* const> backends, const Options& options)
      : inner_(make_inner(backends, options)), devices_(devices_of(backends)) {
    for (Backend* backend : backends) {
      const auto rank = static_cast<int>(ranks_.size());
      ranks_.push_back(is_remote(backend->device()) ? nullptr : std::make_unique<Rank>(*backend, rank));
    }
  }
  std::string_view name() const override { return "staged"; }
  int size() const override { return inner_->size(); }
  void abort(std::string_view reason) override { inner_->abort(reason); }
  size_t buffer_bytes(int rank) const override {
    const auto& own = ranks_[static_cast<size_t>(rank)];
    const size_t stages = own != nullptr ? own->stage_bytes() : stage_bytes_of(*devices_[static_cast<size_t>(rank)]);
    return inner_->buffer_bytes(rank) + stages;
  }

  void enqueue(int rank, const Call& call) override {
    validate(rank, call);
    require<InvalidArgument>(ranks_[static_cast<size_t>(rank)] != nullptr,
                             "[{} {}] rank {} ({}) belongs to another process", name_of(call.kind), call.what, rank,
                             devices_[static_cast<size_t>(rank)]->name());
    Rank& own = *ranks_[static_cast<size_t>(rank)];
    own.begin();
    if (largest(call) <= most_of(call.dtype)) {
      queue(own, own.take(call));
    } else {
      (this->*pieces_of(call.kind))(own, call);
    }
    own.end();
  }

 private:
  using QueuePieces = void (StagedCommunicator::*)(Rank& own, const Call& call);
  static QueuePieces pieces_of(Collective kind) {
    using Self = StagedCommunicator;
    static constexpr QueuePieces kTable[] = {
#define SHOAL_COLLECTIVE(id, name, ...) &Self::queue_##name,
#include "graph/collectives.def"
    };
    return kTable[static_cast<size_t>(kind)];
  }

  /// Number of elements that fit into a staging buffer, rounded down to whole blocks of the dtype.
  static int64_t most_of(DType dtype) {
    const DTypeTraits& type = traits(dtype);
    return static_cast<int64_t>(kPieceBytes / type.block_bytes) * type.block_elems;
  }
  /// Largest number of elements that any one rank reads or writes in a call.
  int64_t largest(const Call& call) const {
    int64_t most = 0;
    for (int rank = 0; rank < size(); ++rank) {
      most = std::max({most, elements_in(rank, size(), call), elements_out(rank, size(), call)});
    }
    return most;
  }
  /// Number of elements that the next piece takes from a part of `count` elements. Earlier pieces have already taken
  /// `done` elements of the part.
  static int64_t next(int64_t count, int64_t done, int64_t most) {
    return std::clamp(count - done, int64_t{0}, most);
  }
  static int64_t sum(std::span<const int64_t> counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }
  /// The address of input element `index`.
  static const std::byte* at(const Call& call, int64_t index) {
    return static_cast<const std::byte*>(call.in) + bytes_for(call.dtype, index);
  }
  /// Advances the call's input by `in` elements and its output by `out` elements.
  static void move(Call& call, int64_t in, int64_t out) {
    if (call.in != nullptr) call.in = at(call, in);
    if (call.out != nullptr) call.out = static_cast<std::byte*>(call.out) + bytes_for(call.dtype, out);
  }

  void queue(Rank& own, Piece& piece) {
    const Call& call = piece.call;
    own.queue(*inner_, piece, bytes_for(call.dtype, elements_in(own.rank(), size(), call)),
              bytes_for(call.dtype, elements_out(own.rank(), size(), call)));
  }

  void queue_all_reduce(Rank& own, const Call& call) {
    const int64_t most = most_of(call.dtype);
    for (int64_t done = 0; done < call.count; done += most) {
      Piece& piece = own.take(call);
      piece.call.count = next(call.count, done, most);
      move(piece.call, done, done);
      queue(own, piece);
    }
  }

  void queue_broadcast(Rank& own, const Call& call) {
    queue_all_reduce(own, call);
  }

  void queue_all_gather(Rank& own, const Call& call) {
    const int64_t most = most_of(call.dtype);
    int64_t begin = 0;
    for (size_t from = 0; from < call.counts.size(); begin += call.counts[from++]) {
      for (int64_t done = 0; done < call.counts[from]; done += most) {
        Piece& piece = own.take_without_counts(call);
        piece.counts[from] = next(call.counts[from], done, most);
        move(piece.call, piece.counts[static_cast<size_t>(own.rank())] > 0 ? done : 0, begin + done);
        queue(own, piece);
      }
    }
  }

  // Types that can be summed have blocks of one element. Rounding adds less than one element to the fraction of each
  // part.
  void queue_reduce_scatter(Rank& own, const Call& call) {
    const int64_t most = most_of(call.dtype) - size();
    const int64_t pieces = (sum(call.counts) + most - 1) / most;
    for (int64_t index = 0; index < pieces; ++index) {
      Piece& piece = own.take_without_counts(call);
      int64_t begin = 0;
      for (size_t to = 0; to < call.counts.size(); begin += call.counts[to++]) {
        const int64_t done = call.counts[to] * index / pieces;
        const int64_t count = call.counts[to] * (index + 1) / pieces - done;
        piece.counts[to] = count;
        piece.packed.push_back({at(call, begin + done), bytes_for(call.dtype, count)});
        if (to == static_cast<size_t>(own.rank())) move(piece.call, 0, done);
      }
      queue(own, piece);
    }
  }

  void queue_all_to_all(Rank& own, const Call& call) {
    const int n = size(), rank = own.rank();
    const int64_t most = most_of(call.dtype);
    const auto pair = [n](int from, int to) { return static_cast<size_t>(from) * n + to; };
    for (int round = 0; round < n; ++round) {
      const int target = (rank + round) % n, source = (rank + n - round) % n;
      const int64_t sent = sum(call.counts.subspan(pair(rank, 0), target));
      int64_t received = 0, longest = 0;
      for (int from = 0; from < source; ++from) received += call.counts[pair(from, rank)];
      for (int from = 0; from < n; ++from) longest = std::max(longest, call.counts[pair(from, (from + round) % n)]);
      for (int64_t done = 0; done < longest; done += most) {
        Piece& piece = own.take_without_counts(call);
        for (int from = 0; from < n; ++from) {
          const size_t both = pair(from, (from + round) % n);
          piece.counts[both] = next(call.counts[both], done, most);
        }
        move(piece.call, sent + std::min(done, call.counts[pair(rank, target)]),
             received + std::min(done, call.counts[pair(source, rank)]));
        queue(own, piece);
      }
    }
  }

  std::unique_ptr<Communicator> inner_;
  const std::vector<Device*> devices_;
  std::vector<std::unique_ptr<Rank>> ranks_;  ///< null for ranks of other processes
};

}  // namespace
}  // namespace staged

CommunicatorTraits describe_staged_communicator(std::span<Device* const> devices, const Options& options) {
  CommunicatorTraits traits = options.processes != nullptr ? describe_mpi_communicator(devices, options)
                                                           : describe_host_communicator(devices, options);
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    traits.buffer_bytes[rank] += staged::stage_bytes_of(*devices[rank]);
  }
  return traits;
}

std::unique_ptr<Communicator> make_staged_communicator(std::span<Backend* const> ranks, const Options& options) {
  return std::make_unique<staged::StagedCommunicator>(ranks, options);
}

}  // namespace shoal::collectives
