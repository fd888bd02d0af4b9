// Saves the KV cache of a session as bytes. Another session of the same model can continue from these bytes, on other
// devices, with other shares or another context. If a model has separate RoPE factors for long contexts, both sessions
// need a long context, or both a short context.
//
//   std::vector<std::byte> state = save_state(session);      // after 40 tokens, say
//   restore_state(other, state);                             // other.position() == 40
//   other.evaluate(std::array{next_token});                  // logits come with the next token
//
// A state has positions [0, position) of every cache tensor (only the latest positions of layers with a window), in the
// order of a contiguous tensor, independent of devices, context and batches. It begins with a checked header: magic
// number, version, model (hyper-parameters, names, types and shapes of the weights, and the first bytes of each
// weight), RoPE factors, cache types, rows, checksum. Numbers are little-endian. Blocking; only one thread at a time
// may use a session.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "models/session/session.h"

namespace shoal::models {

/// Waits for queued work and throws its errors.
std::vector<std::byte> save_state(Session& session);

/// Replaces the contents of the session and sets its position to the state's position. No logits are available until
/// evaluate(). Throws InvalidArgument, and leaves the session unchanged, if the bytes are damaged or not a state,
/// belong to another model or other cache types, or do not fit into the context.
void restore_state(Session& session, std::span<const std::byte> state);

}  // namespace shoal::models
