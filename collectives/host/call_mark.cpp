#include "collectives/host/call_mark.h"

#include "base/error.h"

namespace shoal::collectives::host {
namespace {

std::string describe(int rank, const CallMark& mark) {
  return fmt::format("rank {} queued {} {} x {} (root {}, digest of counts {:04x})", rank, name_of(mark.kind),
                     name_of(mark.dtype), mark.count, mark.root, (mark.whole != 0 ? mark.whole : mark.digest) & 0xffff);
}

}  // namespace

CallMark mark_of(const Call& call) {
  return {.kind = call.kind,
          .dtype = call.dtype,
          .root = call.root,
          .count = call.count,
          .digest = call_digest(call),
          .whole = call.whole};
}

std::string disagreement(const Call& call, int rank, const CallMark& mark, int other, const CallMark& others_mark) {
  return fmt::format(
      "[{} {}] ranks queued different collectives: {}, but {}; every rank must queue the same collectives in "
      "the same order",
      name_of(call.kind), call.what, describe(rank, mark), describe(other, others_mark));
}

}  // namespace shoal::collectives::host
