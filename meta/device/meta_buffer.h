// Buffers of the meta device. A MetaBuffer has no memory of its own: it knows the shards of its tensors and owns the
// members' buffers that store these shards. The addresses in a MetaBuffer are fake. A fake address only marks a tensor
// as placed.
//
// MetaBufferType::allocate_tensors places a set of tensors, such as weights or caches, with one buffer per member.
// bind() attaches shards that were placed elsewhere, such as the compute tensors of a plan. place() makes one
// allocation per tensor and member. All calls block. During a call, queued work of the members must not use the
// accessed bytes. Several threads may write different bytes of a tensor concurrently.
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
  /// Type of the members' buffers: each member's default type, or its type for weights. kHost wraps host memory; the
  /// shards that cannot be wrapped have the default type.
  enum class Of : uint8_t { kDefault, kWeights, kHost };
  /// `state` owns the buffer type.
  MetaBufferType(MetaState& state, Of of) : state_(state), of_(of) {}
  std::string name() const override;
  /// Throws InvalidArgument if the device has been destroyed.
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

/// State that a meta device shares with its backends, buffers and events. These objects may outlive the device.
struct MetaState : std::enable_shared_from_this<MetaState> {
  MetaState(MetaDevice& device, std::string name, Mesh mesh);
  /// Throws InvalidArgument if the device has been destroyed.
  MetaDevice& device() const;

  const std::string name;
  const Mesh mesh;
  ShardStore store;
  MetaBufferType buffer_type{*this, MetaBufferType::Of::kDefault};
  MetaBufferType weights_type{*this, MetaBufferType::Of::kWeights};
  MetaBufferType host_type{*this, MetaBufferType::Of::kHost};
  MetaDevice* owner;  ///< nullptr after the device was destroyed
};

class MetaBuffer final : public Buffer {
 public:
  /// `host` is the memory that the buffer wraps, or nullptr.
  MetaBuffer(MetaBufferType& type, size_t size, std::byte* host = nullptr);
  ~MetaBuffer() override;

  std::byte* base() const override;
  void set_usage(Usage usage) override;
  /// Allocates the shards of a persistent tensor with the layout that the callback returns. A view gets views of its
  /// base's shards if the layout of the base allows such views. Other tensors get their shards from bind().
  void init_tensor(Tensor& tensor) override;
  void clear(uint8_t value) override;
  /// Declares and allocates the shards of all tensors. After a failure, no shards are declared or allocated.
  void allocate_shards(std::span<Tensor* const> tensors, Usage usage);
  /// Declares the shards of a tensor at `tensor.data` in wrapped memory. A shard whose bytes are contiguous in the
  /// tensor is wrapped if its device can wrap host memory. Every other shard gets own memory and a copy of its bytes.
  void wrap_shards(Tensor& tensor);
  /// Attaches placed shards and makes this buffer the tensor's buffer.
  void bind(Tensor& tensor, Shards shards);
  /// Removes the entry of a bound tensor, which may no longer exist.
  void unbind(const Tensor* tensor) { shards_.erase(tensor); }
  /// Copies and returns true if `src` is in host memory, or if both tensors have the same layout, or if `dst` is
  /// mirrored and `src` is not on a meta device. Otherwise returns false.
  bool copy_tensor(const Tensor& src, Tensor& dst) override;
  /// Copies and returns true if `dst` is in host memory, or if `src` is mirrored and every process has a rank.
  /// Otherwise returns false.
  bool copy_to(const Tensor& src, Tensor& dst) override;
  /// Keeps `part`, a buffer of a member, alive as long as this buffer.
  void keep(int rank, std::shared_ptr<Buffer> part);

  /// Returns nullptr if the tensor is not bound.
  const Shards* find(const Tensor& tensor) const;
  /// Number of bytes on each member.
  std::vector<size_t> bytes_per_rank() const;

 protected:
  void do_set(Tensor& tensor, const void* data, size_t offset, size_t size) override;
  /// Each rank reads only its own bytes if the bytes of every rank are contiguous and no two ranks need the same byte.
  void do_fill(Tensor& tensor, size_t offset, size_t size, const ByteReader& read) override;
  void do_get(const Tensor& tensor, void* data, size_t offset, size_t size) override;
  void do_memset(Tensor& tensor, uint8_t value, size_t offset, size_t size) override;
  /// Removes the shards of all tensors placed in this buffer, and frees the memory of the shards. The tensors must be
  /// placed again before use.
  void do_reset() override;
  void do_alias(Tensor& tensor, const Tensor& placed) override;
  /// Refuses a tensor that was placed in this buffer, because such a tensor owns its shards.
  void do_unplace(Tensor& tensor) override;

 private:
  /// Implements do_get() for partial sums, for meshes that span processes, and for processes without a rank. If the
  /// tensor is mirrored and every process has a rank, each process reads its own shard. Otherwise each process sends
  /// its bytes to all other processes.
  void get_everywhere(const Shards& shards, void* data, size_t offset, size_t size);
  /// Broadcasts the bytes of rank `rank` from its process to all other processes.
  void hand_out(size_t rank, std::span<std::byte> bytes) const;
  /// Creates the local views of one view. One graph per rank owns these local views.
  void make_view(const Tensor& view);
  void drop_shards();
  /// Adds the shards of a tensor to the store, with the layout that the callback returns.
  void declare(const Tensor& tensor);
  /// Wraps or copies the bytes of rank `rank`. See wrap_shards().
  std::unique_ptr<Buffer> place_from_host(const Tensor& tensor, const Shards& shards, size_t rank);
  /// Removes the entries of `declared_` from index `first` on, and their shards from the store.
  void erase_declared(size_t first);

  std::shared_ptr<MetaState> state_;
  std::byte* host_;
  std::unordered_map<const Tensor*, Shards> shards_;
  /// Each key is a view or an alias of a tensor in this buffer. Each value is the list of graphs that own the local
  /// views. An alias of a view shares the graphs of this view. The keys may no longer exist, for example after the
  /// graph of a view was destroyed.
  std::unordered_map<const Tensor*, std::vector<std::shared_ptr<Graph>>> names_;
  /// Tensors that this buffer declared in the store. Such a tensor may no longer exist, and a new tensor may have its
  /// address.
  std::vector<std::pair<const Tensor*, std::shared_ptr<const Shards>>> declared_;
  std::vector<std::vector<std::shared_ptr<Buffer>>> parts_;  ///< the members' buffers, per rank
};

/// The shards of a tensor in a meta buffer. Throws InvalidArgument if the tensor is stored elsewhere or its graph has
/// no plan.
const Shards& shards_of(const Tensor& tensor);
/// Like shards_of(), but returns nullptr instead of throwing.
const Shards* find_shards(const Tensor& tensor);

/// Throws InvalidArgument, before any access, if a rank has no memory for its addend of a partial sum. This happens for
/// products of experts if the rank has no experts. `what` names the call in the message, such as "set" or "get".
void check_addends(std::string_view what, const Shards& shards);

/// Sets bytes [offset, offset + size) to zero in the addends of all ranks except rank 0.
void zero_other_addends(const Shards& shards, size_t offset, size_t size);

}  // namespace shoal::meta
