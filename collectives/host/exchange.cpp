#include "collectives/host/exchange.h"

#include <cstring>

#include "base/error.h"

namespace shoal::collectives::host {
namespace {

bool agree(const Post& a, const Post& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.root == b.root && a.count == b.count && a.digest == b.digest &&
         a.whole == b.whole;
}

std::string describe(int rank, const Post& post) {
  return fmt::format("rank {} {} {} x {} (root {}, counts #{:04x})", rank, name_of(post.kind), name_of(post.dtype),
                     post.count, post.root, (post.whole != 0 ? post.whole : post.digest) & 0xffff);
}

}  // namespace

Exchange::Exchange(Rendezvous& rendezvous, RankScratch& scratch, int rank, const Call& call, int parity)
    : rendezvous_(rendezvous), scratch_(scratch), rank_(rank), call_(call), parity_(parity) {
  post(rank) = {.kind = call.kind,
                .dtype = call.dtype,
                .root = call.root,
                .count = call.count,
                .digest = call_digest(call),
                .whole = call.whole,
                .in = in(),
                .out = out()};
}

size_t Exchange::bytes(int64_t count) const {
  return bytes_for(call_.dtype, count);
}

void Exchange::meet() {
  TraceSpan* span = current_span();
  const int64_t begin = span != nullptr ? trace_clock() : 0;
  rendezvous_.meet(rank_, call_);
  if (span != nullptr) span->waiting_ns += trace_clock() - begin;
  if (!have_met_) check_agreement();
  have_met_ = true;
}

void Exchange::check_agreement() const {
  for (int other = 1; other < size(); ++other) {
    if (agree(post(0), post(other))) continue;
    rendezvous_.fail(
        fmt::format("[{} {}] ranks queued different collectives: {}, but {}; every rank must queue the "
                    "same ones in the same order",
                    name_of(call_.kind), call_.what, describe(0, post(0)), describe(other, post(other))));
    rendezvous_.throw_if_failed();
  }
}

std::span<const std::byte* const> Exchange::slots() {
  for (int rank = 0; rank < size(); ++rank) scratch_.sources[rank] = slot(rank);
  return scratch_.sources;
}

std::span<const std::byte* const> Exchange::ins() {
  for (int rank = 0; rank < size(); ++rank) scratch_.sources[rank] = in_of(rank);
  return scratch_.sources;
}

std::span<std::byte* const> Exchange::outs() {
  for (int rank = 0; rank < size(); ++rank) scratch_.targets[rank] = post(rank).out;
  return scratch_.targets;
}

void copy_bytes(std::byte* to, const std::byte* from, size_t size) {
  if (size > 0 && to != from) std::memcpy(to, from, size);
}

}  // namespace shoal::collectives::host
