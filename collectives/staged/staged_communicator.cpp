// The staged communicator: ranks meet in host memory, through the host communicator. A rank whose memory is its own has
// two more streams, one that brings pieces of the message to pinned stages and one that takes results back:
//
//   in      read 0 | read 1 |        | read 2 ...        a stage is read into when the exchange before is done with it
//   rank             meet 0 | meet 1 |        | meet 2   the rank's own stream: the host communicator
//   out                     | write 0| write 1| ...
//
// Kinds without counts are cut into pieces of kPieceBytes, the same on every rank; the others, whose parts lie
// anywhere in the message, go in one piece, for which the stages grow.
#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "base/error.h"
#include "collectives/communicator.h"
#include "devices/device.h"
#include "devices/host_buffer.h"

namespace shoal::collectives {
namespace staged {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr int kStages = 2;

/// A call of the host communicator for one piece, kept until it is done.
struct Piece {
  Call call;
  std::atomic<bool> in_use{false};
};

/// One piece's place in pinned memory, and the marks that say when it is free.
struct Stage {
  std::unique_ptr<Buffer> in, out;
  std::unique_ptr<Event> filled, exchanged, emptied;
};

/// A rank's side: direct for host memory, through stages otherwise.
class Rank {
 public:
  Rank(Backend& backend, int rank) : backend_(backend), rank_(rank) {
    if (!backend.has_own_memory()) return;
    Device& device = backend.device();
    pageable_ = std::make_unique<HostBufferType>(device);
    type_ = device.host_buffer_type() != nullptr ? device.host_buffer_type() : pageable_.get();
    in_ = device.init();
    out_ = device.init();
    begin_ = device.new_event();
    require<InvalidArgument>(begin_ != nullptr,
                             "[staged communicator] {} has no events; use a communicator of its kind", device.name());
    for (Stage& stage : stages_) {
      stage.filled = device.new_event(), stage.exchanged = device.new_event(), stage.emptied = device.new_event();
    }
    reserve(kPieceBytes, kPieceBytes);
  }
  ~Rank() {
    // What is queued uses the stages.
    for (Backend* stream : {in_.get(), out_.get()}) {
      if (stream != nullptr) finish_queued(*stream);
    }
  }

  size_t stage_bytes() const {
    size_t bytes = 0;
    for (const Stage& stage : stages_) {
      if (stage.in != nullptr) bytes += stage.in->size() + stage.out->size();
    }
    for (const auto& stage : retired_) bytes += stage->size();
    return bytes;
  }

  /// Queues a piece: elements of in and out as the call says, exchanged by `inner`.
  void queue(Communicator& inner, const Call& call, size_t in_bytes, size_t out_bytes) {
    Piece& piece = take_piece();
    piece.call = call;
    if (in_ == nullptr) {
      inner.enqueue(rank_, piece.call);
    } else {
      queue_through_stage(inner, piece, in_bytes, out_bytes);
    }
    const auto give_back = [](void* object, const void*, bool) { static_cast<Piece*>(object)->in_use = false; };
    backend_.enqueue({give_back, &piece, nullptr});
  }

  /// What the caller has queued comes before the pieces that follow.
  void begin() {
    if (in_ == nullptr) return;
    begin_->record(backend_);
    begin_->wait(*in_);
    begin_->wait(*out_);
  }
  /// What the caller queues next comes after the pieces so far.
  void end() {
    if (in_ == nullptr) return;
    for (Stage& stage : stages_) stage.emptied->wait(backend_);
    check_copies();
  }

 private:
  void queue_through_stage(Communicator& inner, Piece& piece, size_t in_bytes, size_t out_bytes) {
    reserve(in_bytes, out_bytes);
    Stage& stage = stages_[next_++ % kStages];
    stage.exchanged->wait(*in_);
    in_->read_bytes_async(piece.call.in, stage.in->base(), in_bytes);
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

  /// Of the streams that copy, which are not synchronized.
  void note_failure(Backend& stream) {
    const auto note = [](void* object, const void*, bool failed) {
      if (failed) *static_cast<std::atomic<bool>*>(object) = true;
    };
    stream.enqueue({note, &copies_failed_, nullptr});
  }
  /// The rank's own stream fails with them, and the host communicator tells its peers.
  void check_copies() {
    const auto check = [](void* object, const void*, bool failed) {
      const Rank& own = *static_cast<Rank*>(object);
      if (failed || !own.copies_failed_) return;
      fail<DeviceError>("[staged communicator] rank {} ({}) cannot copy between its memory and the host's", own.rank_,
                        own.backend_.name());
    };
    backend_.enqueue({check, this, nullptr});
  }

  Piece& take_piece() {
    for (Piece& piece : pieces_) {
      if (!piece.in_use.exchange(true)) return piece;
    }
    Piece& piece = pieces_.emplace_back();
    piece.in_use = true;
    return piece;
  }

  /// Larger stages, if need be. What is queued still uses those before: they go with the communicator.
  void reserve(size_t in_bytes, size_t out_bytes) {
    if (stages_[0].in != nullptr && stages_[0].in->size() >= in_bytes && stages_[0].out->size() >= out_bytes) return;
    for (Stage& stage : stages_) {
      stage.in = larger(std::move(stage.in), in_bytes);
      stage.out = larger(std::move(stage.out), out_bytes);
    }
  }
  std::unique_ptr<Buffer> larger(std::unique_ptr<Buffer> before, size_t bytes) {
    if (before != nullptr && before->size() >= bytes) return before;
    const size_t doubled = before != nullptr ? 2 * before->size() : 0;  // so that few are kept
    if (before != nullptr) retired_.push_back(std::move(before));
    return type_->allocate(std::max(bytes, doubled));
  }

  Backend& backend_;
  const int rank_;
  std::atomic<bool> copies_failed_{false};
  std::unique_ptr<HostBufferType> pageable_;
  BufferType* type_ = nullptr;
  std::unique_ptr<Event> begin_;
  std::array<Stage, kStages> stages_;
  std::vector<std::unique_ptr<Buffer>> retired_;  ///< stages that have become too small
  std::unique_ptr<Backend> in_, out_;
  size_t next_ = 0;
  std::deque<Piece> pieces_;
};

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(std::span<Backend* const> backends, const Options& options)
      : inner_(make_host_communicator(backends, options)) {
    for (Backend* backend : backends) {
      ranks_.push_back(std::make_unique<Rank>(*backend, static_cast<int>(ranks_.size())));
    }
  }
  std::string_view name() const override { return "staged"; }
  int size() const override { return inner_->size(); }
  void abort(std::string_view reason) override { inner_->abort(reason); }
  size_t buffer_bytes(int rank) const override {
    return inner_->buffer_bytes(rank) + ranks_[static_cast<size_t>(rank)]->stage_bytes();
  }

  void enqueue(int rank, const Call& call) override {
    validate(rank, call);
    Rank& own = *ranks_[static_cast<size_t>(rank)];
    own.begin();
    if (call.counts.empty()) {
      queue_pieces(own, rank, call);
    } else {
      own.queue(*inner_, call, bytes_for(call.dtype, elements_in(rank, size(), call)),
                bytes_for(call.dtype, elements_out(rank, size(), call)));
    }
    own.end();
  }

 private:
  void queue_pieces(Rank& own, int rank, const Call& call) {
    const DTypeTraits& type = traits(call.dtype);
    const int64_t most = static_cast<int64_t>(kPieceBytes / type.block_bytes) * type.block_elems;
    int64_t done = 0;
    do {
      Call piece = call;
      piece.count = std::min(most, call.count - done);
      const size_t offset = bytes_for(call.dtype, done);
      if (call.in != nullptr) piece.in = static_cast<const std::byte*>(call.in) + offset;
      if (call.out != nullptr) piece.out = static_cast<std::byte*>(call.out) + offset;
      own.queue(*inner_, piece, bytes_for(call.dtype, elements_in(rank, size(), piece)),
                bytes_for(call.dtype, elements_out(rank, size(), piece)));
      done += piece.count;
    } while (done < call.count);
  }

  std::unique_ptr<Communicator> inner_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace
}  // namespace staged

CommunicatorTraits describe_staged_communicator(std::span<Device* const> devices, const Options& options) {
  CommunicatorTraits traits = describe_host_communicator(devices, options);
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    // A stage has memory for both directions.
    if (!devices[rank]->buffer_type().is_host()) traits.buffer_bytes[rank] += 2 * staged::kStages * staged::kPieceBytes;
  }
  return traits;
}

std::unique_ptr<Communicator> make_staged_communicator(std::span<Backend* const> ranks, const Options& options) {
  return std::make_unique<staged::StagedCommunicator>(ranks, options);
}

}  // namespace shoal::collectives
