// Buffers of the meta device. A MetaBuffer has no memory of its own: it knows the shards of the tensors placed in it
// and owns the members' buffers they lie in. Its addresses are fake: they only say that a tensor is placed.
//
// Two ways in: MetaBufferType::allocate_tensors places a set of tensors with one buffer per member (weights, caches),
// and bind() attaches shards placed elsewhere (a plan's compute tensors). place() works too, one
// member allocation for each tensor. Blocking calls only; the streams of the members must be idle on those bytes.
// Different bytes of a tensor may be written by different threads at a time.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "devices/device.h"
#include "meta/device/mesh.h"
#include "meta/device/transfer.h"
#include "meta/layout/shards.h"

namespace shoal::meta {

class MetaDevice;
struct MetaState;

class MetaBufferType final : public BufferType {
 public:
  /// What the members' memory is of: their default type, or the one for weights.
  enum class Of : uint8_t { kDefault, kWeights };
  /// Part of the state.
  MetaBufferType(MetaState& state, Of of) : state_(state), of_(of) {}
  std::string name() const override;
  /// Throws InvalidArgument when the device has been destroyed.
  Device& device() const override;
  size_t alignment() const override;
  std::unique_ptr<Buffer> allocate(size_t size) override;
  std::unique_ptr<Buffer> allocate_tensors(std::span<Tensor* const> tensors, Usage usage) override;

  BufferType& of_member(Device& member) const {
    return of_ == Of::kWeights ? member.weights_type() : member.buffer_type();
  }
  MetaState& state() const { return state_; }

 private:
  MetaState& state_;
  Of of_;
};

/// What a meta device shares with its backends, buffers and events, which may outlive it.
struct MetaState : std::enable_shared_from_this<MetaState> {
  MetaState(MetaDevice& device, std::string name, Mesh mesh);
  /// Throws InvalidArgument when it has been destroyed.
  MetaDevice& device() const;

  const std::string name;
  const Mesh mesh;
  ShardStore store;
  MetaBufferType buffer_type{*this, MetaBufferType::Of::kDefault};
  MetaBufferType weights_type{*this, MetaBufferType::Of::kWeights};
  MetaDevice* owner;  ///< nullptr: destroyed
};

class MetaBuffer final : public Buffer {
 public:
  MetaBuffer(MetaBufferType& type, size_t size);
  ~MetaBuffer() override;

  std::byte* base() const override;
  void set_usage(Usage usage) override;
  /// Persistent tensors: asks the callback and allocates the shards. Views get views of their base's shards, where the
  /// layout of their base allows that. Others wait for a plan to bind them.
  void init_tensor(Tensor& tensor) override;
  void clear(uint8_t value) override;
  /// Declares and allocates all tensors together. On failure nothing remains.
  void allocate_shards(std::span<Tensor* const> tensors, Usage usage);
  /// Attaches placed shards and makes this the tensor's buffer.
  void bind(Tensor& tensor, Shards shards);
  /// Forgets a bound tensor, which may be gone.
  void unbind(const Tensor* tensor) { shards_.erase(tensor); }
  /// From host memory, from shards of the same layout, or to every rank of a mirrored tensor.
  bool copy_tensor(const Tensor& src, Tensor& dst) override;
  /// To host memory, or from one rank of a mirrored tensor.
  bool copy_to(const Tensor& src, Tensor& dst) override;
  /// Keeps a member's buffer alive as long as this one.
  void keep(int rank, std::shared_ptr<Buffer> part);

  /// nullptr when the tensor is not bound.
  const Shards* find(const Tensor& tensor) const;
  /// Bytes held on each member.
  std::vector<size_t> bytes_per_rank() const;

 protected:
  void do_set(Tensor& tensor, const void* data, size_t offset, size_t size) override;
  /// Ranks whose shards have the bytes in one stretch each, and no two the same, read for themselves.
  void do_fill(Tensor& tensor, size_t offset, size_t size, const ByteReader& read) override;
  void do_get(const Tensor& tensor, void* data, size_t offset, size_t size) override;
  void do_memset(Tensor& tensor, uint8_t value, size_t offset, size_t size) override;
  /// Forgets and frees the shards of all tensors placed here; they must be placed again before they are used.
  void do_reset() override;
  void do_alias(Tensor& tensor, const Tensor& placed) override;
  /// Refuses tensors that were placed here: they own their shards.
  void do_forget(Tensor& tensor) override;

 private:
  /// do_get of partial sums, and where the ranks belong to several processes, or some process has none: each gives the
  /// others what it has.
  void get_everywhere(const Shards& shards, void* data, size_t offset, size_t size);
  /// Bytes of rank `rank`, from its process to all others.
  void hand_out(size_t rank, std::span<std::byte> bytes) const;
  /// Local views of one view; a graph for each rank owns them.
  void make_view(const Tensor& view);
  void drop_shards();
  /// From number `first` on.
  void forget_declared(size_t first);

  std::shared_ptr<MetaState> state_;
  std::unordered_map<const Tensor*, Shards> shards_;
  /// Views and aliases of what lies here, with what was made for them; an alias shares what its view has. They may be
  /// gone, as the graph of a view may.
  std::unordered_map<const Tensor*, std::vector<std::shared_ptr<Graph>>> names_;
  /// In the store by us. The tensors may be gone, and others at their addresses be declared.
  std::vector<std::pair<const Tensor*, std::shared_ptr<const Shards>>> declared_;
  std::vector<std::vector<std::shared_ptr<Buffer>>> parts_;  ///< per rank
};

/// The shards of a tensor that lies in a meta buffer. Throws InvalidArgument when it does not, or has no plan yet.
const Shards& shards_of(const Tensor& tensor);
/// The same, or nullptr.
const Shards* find_shards(const Tensor& tensor);

/// Throws InvalidArgument, before anything is read or written, if a rank has no memory for its addend of a partial sum:
/// products of experts of which it has none. `what`: "set", "get" and so on, for the message.
void check_addends(std::string_view what, const Shards& shards);

/// Zeros bytes [offset, offset + size) of every addend but rank 0's.
void zero_other_addends(const Shards& shards, size_t offset, size_t size);

}  // namespace shoal::meta
