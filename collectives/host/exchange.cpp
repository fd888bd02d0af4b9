#include "collectives/host/exchange.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace shoal::collectives::host {

Exchange::Exchange(Rendezvous& rendezvous, RankScratch& scratch, int rank, const Call& call)
    : rendezvous_(rendezvous), scratch_(scratch), rank_(rank), call_(call), parity_(scratch.calls++ & 1) {
  post(rank) = {.mark = mark_of(call), .in = in(), .out = out()};
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
    if (post(0).mark == post(other).mark) continue;
    rendezvous_.fail(disagreement(call_, 0, post(0).mark, other, post(other).mark));
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

// Copies 1 KiB at a time, because memmove of the C library uses the instruction rep movs for longer copies. On AMD Zen
// 3 this instruction takes five times as long if the page offset of `to` is 16 bytes larger than the page offset of
// `from`. The size of a copy is not a compile-time constant, because GCC itself emits rep movs for copies of a constant
// size.
void copy_bytes(std::byte* to, const std::byte* from, size_t size) {
  constexpr size_t kPiece = 1024;
  if (to == from) return;
  for (size_t done = 0; done < size; done += kPiece)
    std::memmove(to + done, from + done, std::min(kPiece, size - done));
}

}  // namespace shoal::collectives::host
