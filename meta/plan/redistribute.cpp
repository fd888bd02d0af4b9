#include "meta/plan/redistribute.h"

#include <algorithm>

#include "base/error.h"
#include "meta/plan/cost.h"

namespace shoal::meta {

Tensor* as_contiguous(Graph& g, Tensor* x) {
  return x->is_contiguous() ? x : contiguous(g, x);
}

namespace {

/// A stretch of a local axis.
struct Piece {
  int64_t begin = 0;
  int64_t length = 0;
};
using Pieces = std::vector<Piece>;

/// Reshapes x into one row.
Tensor* flatten(Graph& g, Tensor* x) {
  return reshape(g, as_contiguous(g, x), {x->elements(), 1, 1, 1});
}

/// Concatenates parts. Parts of length 0 are skipped; if all parts are empty, the result is empty.
Tensor* join(Graph& g, std::vector<Tensor*> parts, int axis) {
  std::vector<Tensor*> filled;
  for (Tensor* part : parts) {
    if (!part->empty()) filled.push_back(part);
  }
  if (filled.empty()) filled = std::move(parts);
  return filled.size() == 1 ? filled.front() : concat(g, std::move(filled), axis);
}

/// Concatenates pieces of x along an axis. Neighbouring pieces are merged. If one piece covers x, the result is x
/// itself.
Tensor* take(Graph& g, Tensor* x, int axis, const Pieces& pieces) {
  Pieces merged;
  for (const Piece& piece : pieces) {
    if (!merged.empty() && merged.back().begin + merged.back().length == piece.begin) {
      merged.back().length += piece.length;
    } else {
      merged.push_back(piece);
    }
  }
  if (merged.empty()) merged.push_back({0, 0});
  if (merged.size() == 1 && merged[0].length == x->shape[axis]) return x;
  std::vector<Tensor*> parts;
  for (const Piece& piece : merged) parts.push_back(slice(g, x, {axis, piece.begin, piece.length}));
  return join(g, std::move(parts), axis);
}

/// A device's runs as pieces of the whole axis.
Pieces global_pieces(const Partition& partition, int device) {
  Pieces pieces;
  for (const OwnedRun& run : partition.owned_by(device)) pieces.push_back({run.begin, run.length});
  return pieces;
}

/// The elements that `device` owns under `wanted` and holds under `held`, as pieces of its shard under `held`.
///   held 5:{0} 3:{1} 1:{0}, wanted 2:{1} 4:{0} 3:{1}: device 0 wants global 2-5 and holds 0-4 and 8. The result is
///   {begin 2, length 3}. Device 1 has to send global element 5.
Pieces local_pieces(const Partition& held, const Partition& wanted, int device) {
  Pieces pieces;
  const auto mine = held.owned_by(device);
  auto first = mine.begin();
  for (const OwnedRun& want : wanted.owned_by(device)) {
    while (first != mine.end() && first->begin + first->length <= want.begin) ++first;
    for (auto it = first; it != mine.end() && it->begin < want.begin + want.length; ++it) {
      const OwnedRun& have = *it;
      const int64_t begin = std::max(want.begin, have.begin);
      const int64_t end = std::min(want.begin + want.length, have.begin + have.length);
      if (begin < end) pieces.push_back({have.local_begin + begin - have.begin, end - begin});
    }
  }
  return pieces;
}

/// True if all later axes have length 1. Slices along `axis` are then contiguous and follow each other.
bool is_outermost(const Shape& shape, int axis) {
  return std::all_of(shape.begin() + axis + 1, shape.end(), [](int64_t length) { return length == 1; });
}

int64_t dense_bytes(const Tensor& local, const Shape& shape) {
  return static_cast<int64_t>(bytes_for(local.dtype, shape[0] * shape[1] * shape[2] * shape[3]));
}

class Redistributor {
 public:
  Redistributor(LocalBuilder& builder, const Shape& shape, const std::string& name)
      : builder_(builder), shape_(shape), name_(name), ranks_(builder.ranks()) {}

  Locals mirrored_to_split(const Locals& locals, const Layout& to) {
    return each([&](Graph& g, int r) { return take(g, locals[r], to.axis, global_pieces(to.partition, r)); });
  }

  Locals mirrored_to_partial(const Locals& locals) {
    return each([&](Graph& g, int r) { return r == 0 ? locals[0] : zeros(g, locals[r]->dtype, shape_); });
  }

  Locals partial_to_mirrored(const Locals& locals) {
    const Locals dense = each([&](Graph& g, int r) { return as_contiguous(g, locals[r]); });
    return builder_.collective(Collective::kAllReduce, dense, {}, name_, dense_bytes(*locals[0], shape_));
  }

  Locals partial_to_split(const Locals& locals, const Layout& to) {
    if (!to.partition.is_disjoint()) return mirrored_to_split(partial_to_mirrored(locals), to);
    std::vector<int64_t> counts;
    for (int r = 0; r < ranks_; ++r) counts.push_back(count(to.local_shape(shape_, r)));
    const bool in_order = to.partition.is_rank_ordered() && is_outermost(shape_, to.axis);
    const Locals packed = each([&](Graph& g, int r) {
      if (in_order) return flatten(g, locals[r]);
      std::vector<Tensor*> parts;
      for (int d = 0; d < ranks_; ++d) {
        parts.push_back(flatten(g, take(g, locals[r], to.axis, global_pieces(to.partition, d))));
      }
      return join(g, std::move(parts), 0);
    });
    const Locals mine =
        builder_.collective(Collective::kReduceScatter, packed, counts, name_, dense_bytes(*locals[0], shape_));
    return each([&](Graph& g, int r) { return reshape(g, mine[r], to.local_shape(shape_, r)); });
  }

  Locals split_to_mirrored(const Locals& locals, const Layout& from) {
    const Layout held = Layout::split(from.axis, from.partition.disjoint());
    std::vector<int64_t> counts;
    for (int r = 0; r < ranks_; ++r) counts.push_back(count(held.local_shape(shape_, r)));
    const Locals sent = each([&](Graph& g, int r) {
      return flatten(g, take(g, locals[r], from.axis, local_pieces(from.partition, held.partition, r)));
    });
    const Locals flat =
        builder_.collective(Collective::kAllGather, sent, counts, name_, dense_bytes(*locals[0], shape_));
    return each([&](Graph& g, int r) { return in_order(g, flat[r], held); });
  }

  /// A rank either holds the whole tensor, or holds nothing and needs nothing.
  Locals held_to_split(const Locals& locals, const Layout& from, const Layout& to) {
    const Owners& holders = *from.holders();
    return each([&](Graph& g, int r) {
      if (std::find(holders.begin(), holders.end(), r) != holders.end()) {
        return take(g, locals[r], to.axis, global_pieces(to.partition, r));
      }
      const Shape empty = to.local_shape(shape_, r);
      return locals[r]->shape == empty ? locals[r] : reshape(g, as_contiguous(g, locals[r]), empty);
    });
  }

  Locals split_to_partial(const Locals& locals, const Layout& from) {
    const Partition held = from.partition.disjoint();
    return each([&](Graph& g, int r) {
      std::vector<Tensor*> parts;
      for (const Run& run : held.runs()) {
        Shape hole = shape_;
        hole[from.axis] = run.length;
        if (run.owners[0] != r)
          parts.push_back(zeros(g, locals[r]->dtype, hole));
        else
          parts.push_back(nullptr);
      }
      fill_own(g, locals[r], from, held, r, parts);
      return parts.empty() ? locals[r] : join(g, std::move(parts), from.axis);
    });
  }

  Locals split_to_split(const Locals& locals, const Layout& from, const Layout& to) {
    if (is_local_conversion(from, to, ranks_)) {
      return each(
          [&](Graph& g, int r) { return take(g, locals[r], to.axis, local_pieces(from.partition, to.partition, r)); });
    }
    return from.axis == to.axis ? exchange_runs(locals, from, to) : exchange_axes(locals, from, to);
  }

 private:
  template <class F>
  Locals each(F&& make) {
    Locals out;
    for (int r = 0; r < ranks_; ++r) out.push_back(make(builder_.graph(r), r));
    return out;
  }

  static int64_t count(const Shape& shape) { return shape[0] * shape[1] * shape[2] * shape[3]; }

  static Tensor* zeros(Graph& g, DType dtype, const Shape& shape) { return fill(g, {dtype, shape, 0.0f}); }

  /// Makes the whole tensor from its concatenated shards.
  Tensor* in_order(Graph& g, Tensor* flat, const Layout& held) {
    if (held.partition.is_rank_ordered() && is_outermost(shape_, held.axis)) return reshape(g, flat, shape_);
    std::vector<Shape> shapes;
    for (int r = 0; r < ranks_; ++r) shapes.push_back(held.local_shape(shape_, r));
    return assemble(g, flat, held.axis, all_runs(held.partition), shapes, shape_);
  }

  /// Elements [begin, begin + count(shape)) of a flat tensor as a tensor of shape `shape`.
  static Tensor* block(Graph& g, Tensor* flat, int64_t begin, const Shape& shape) {
    Tensor* part = flat;
    if (count(shape) != flat->elements()) part = slice(g, flat, {0, begin, count(shape)});
    return reshape(g, part, shape);
  }

  void fill_own(Graph& g, Tensor* local, const Layout& from, const Partition& held, int r,
                std::vector<Tensor*>& parts) {
    int64_t begin = 0;
    const std::vector<OwnedRun> mine = from.partition.owned_by(r);
    for (size_t i = 0; i < parts.size(); ++i) {
      const Run& run = held.runs()[i];
      if (run.owners[0] == r) parts[i] = take(g, local, from.axis, {{to_local(mine, begin), run.length}});
      begin += run.length;
    }
  }

  /// A stretch of the axis and its sender. The sender is the receiving rank itself if this rank holds the elements.
  /// Otherwise the sender is the first owner of the elements.
  struct Transfer {
    int64_t begin = 0;  ///< global index along the axis
    int64_t length = 0;
    int from = 0;
  };
  std::vector<Transfer> transfers(const Partition& held, const Partition& wanted, int rank) const {
    std::vector<Transfer> out;
    auto first = held.runs().begin();
    int64_t first_begin = 0;
    for (const OwnedRun& want : wanted.owned_by(rank)) {
      while (first != held.runs().end() && first_begin + first->length <= want.begin) first_begin += first++->length;
      int64_t begin = first_begin;
      for (auto run = first; run != held.runs().end() && begin < want.begin + want.length; ++run) {
        const int64_t low = std::max(begin, want.begin), high = std::min(begin + run->length, want.begin + want.length);
        const bool own = std::find(run->owners.begin(), run->owners.end(), rank) != run->owners.end();
        out.push_back({low, high - low, own ? rank : run->owners[0]});
        begin += run->length;
      }
    }
    return out;
  }

  Locals exchange_runs(const Locals& locals, const Layout& from, const Layout& to) {
    const int axis = from.axis;
    std::vector<std::vector<Transfer>> wanted;  // one list for each receiving rank
    for (int r = 0; r < ranks_; ++r) wanted.push_back(transfers(from.partition, to.partition, r));
    std::vector<int64_t> counts(static_cast<size_t>(ranks_) * ranks_, 0), lengths = counts;
    const int64_t rest = shape_[axis] == 0 ? 0 : count(shape_) / shape_[axis];
    for (int r = 0; r < ranks_; ++r) {
      for (const Transfer& t : wanted[r]) lengths[t.from * ranks_ + r] += t.length;
    }
    for (size_t i = 0; i < counts.size(); ++i) counts[i] = lengths[i] * rest;
    const Locals packed = each([&](Graph& g, int s) {
      std::vector<Tensor*> parts;
      const auto held = from.partition.owned_by(s);
      for (int d = 0; d < ranks_; ++d) {
        Pieces pieces;
        for (const Transfer& t : wanted[d]) {
          if (t.from == s) pieces.push_back({to_local(held, t.begin), t.length});
        }
        if (!pieces.empty()) parts.push_back(flatten(g, take(g, locals[s], axis, pieces)));
      }
      if (parts.empty()) parts.push_back(flatten(g, take(g, locals[s], axis, {})));
      return join(g, std::move(parts), 0);
    });
    const Locals flat =
        builder_.collective(Collective::kAllToAll, packed, counts, name_, dense_bytes(*locals[0], shape_));
    return each([&](Graph& g, int d) {
      std::vector<Shape> shapes(ranks_, shape_);
      for (int from_rank = 0; from_rank < ranks_; ++from_rank)
        shapes[from_rank][axis] = lengths[from_rank * ranks_ + d];
      return assemble(g, flat[d], axis, wanted[d], shapes, to.local_shape(shape_, d));
    });
  }

  static int64_t to_local(const std::vector<OwnedRun>& held, int64_t global) {
    const auto behind = std::ranges::upper_bound(held, global, {}, &OwnedRun::begin);
    check(behind != held.begin() && global < (behind - 1)->begin + (behind - 1)->length,
          "the sender does not hold element {}", global);
    return (behind - 1)->local_begin + global - (behind - 1)->begin;
  }

  /// `flat` holds one block from each rank; block s has shape shapes[s]. The result concatenates the stretches `wanted`
  /// of these blocks along `axis`.
  Tensor* assemble(Graph& g, Tensor* flat, int axis, const std::vector<Transfer>& wanted,
                   const std::vector<Shape>& shapes, const Shape& result) {
    std::vector<Tensor*> blocks;
    int64_t begin = 0;
    for (const Shape& shape : shapes) {
      blocks.push_back(block(g, flat, begin, shape));
      begin += count(shape);
    }
    std::vector<Tensor*> parts;
    std::vector<int64_t> next(ranks_, 0);
    for (const Transfer& t : wanted) {
      parts.push_back(take(g, blocks[t.from], axis, {{next[t.from], t.length}}));
      next[t.from] += t.length;
    }
    return parts.empty() ? reshape(g, flat, result) : join(g, std::move(parts), axis);
  }

  static std::vector<Transfer> all_runs(const Partition& held) {
    std::vector<Transfer> out;
    int64_t begin = 0;
    for (const Run& run : held.runs()) {
      out.push_back({begin, run.length, run.owners[0]});
      begin += run.length;
    }
    return out;
  }

  /// Converts a split on one axis to a split on another axis. Rank s sends the block (runs of s) x (runs of d) to rank
  /// d.
  Locals exchange_axes(const Locals& locals, const Layout& from, const Layout& to) {
    const Layout held = Layout::split(from.axis, from.partition.disjoint());
    std::vector<int64_t> counts;
    for (int s = 0; s < ranks_; ++s) {
      for (int d = 0; d < ranks_; ++d) counts.push_back(count(cross_shape(held, to, s, d)));
    }
    const Locals packed = each([&](Graph& g, int s) {
      Tensor* mine = take(g, locals[s], from.axis, local_pieces(from.partition, held.partition, s));
      std::vector<Tensor*> parts;
      for (int d = 0; d < ranks_; ++d) {
        parts.push_back(flatten(g, take(g, mine, to.axis, global_pieces(to.partition, d))));
      }
      return join(g, std::move(parts), 0);
    });
    const Locals flat =
        builder_.collective(Collective::kAllToAll, packed, counts, name_, dense_bytes(*locals[0], shape_));
    return each([&](Graph& g, int d) {
      std::vector<Shape> shapes;
      for (int s = 0; s < ranks_; ++s) shapes.push_back(cross_shape(held, to, s, d));
      return assemble(g, flat[d], held.axis, all_runs(held.partition), shapes, to.local_shape(shape_, d));
    });
  }

  Shape cross_shape(const Layout& held, const Layout& to, int s, int d) const {
    Shape shape = shape_;
    shape[held.axis] = held.partition.local_length(s);
    shape[to.axis] = to.partition.local_length(d);
    return shape;
  }

  LocalBuilder& builder_;
  const Shape& shape_;
  const std::string& name_;
  const int ranks_;
};

}  // namespace

Locals redistribute(LocalBuilder& builder, const Locals& locals, const Shape& shape, const Layout& from,
                    const Layout& to, const std::string& name) {
  if (from == to) return locals;
  Redistributor work(builder, shape, name);
  if (from.is_mirrored()) return to.is_split() ? work.mirrored_to_split(locals, to) : work.mirrored_to_partial(locals);
  if (from.is_partial()) return to.is_split() ? work.partial_to_split(locals, to) : work.partial_to_mirrored(locals);
  if (from.holders() != nullptr && to.is_split() && is_local_conversion(from, to, builder.ranks())) {
    return work.held_to_split(locals, from, to);
  }
  if (to.is_mirrored()) return work.split_to_mirrored(locals, from);
  return to.is_partial() ? work.split_to_partial(locals, from) : work.split_to_split(locals, from, to);
}

}  // namespace shoal::meta
