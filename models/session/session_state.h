// What a session has in its KV cache, as bytes that another session goes on from: one of the same model on other
// devices, with other shares, or with another context (of models that turn keys by other factors in long ones, a long
// one for a long one).
//
//   std::vector<std::byte> state = save_state(session);      // after 40 tokens, say
//   restore_state(other, state);                             // other.position() == 40
//   other.evaluate(std::array{next_token});                  // logits come with the next token
//
// A state is positions [0, position) of every cache tensor, or of layers with a window the last ones, in the order of a
// contiguous tensor, whatever the devices, the context and the batches are, behind a header that is checked: what it
// is, its version, which model it belongs to (hyper-parameters, names, types and shapes of the weights, and the first
// bytes of each), by which factors keys are turned, types of the cache, rows, a checksum. Numbers are little-endian.
// Blocking; one thread at a time may use a session.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "models/session/session.h"

namespace shoal::models {

/// Waits for queued work and throws what failed.
std::vector<std::byte> save_state(Session& session);

/// Replaces what the session holds. Its position is the state's then; it has no logits until it evaluates something.
/// Throws InvalidArgument, with the session as it was, for bytes that are no state or damaged, a state of another model
/// or of other cache types, or one that does not fit into the context.
void restore_state(Session& session, std::span<const std::byte> state);

}  // namespace shoal::models
