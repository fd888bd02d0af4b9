// Saves the KV cache of a session as bytes. Another session of the same model can continue from these bytes. The other
// session may use other devices, other shares or another context. If a model has separate RoPE factors for long
// contexts, the contexts of both sessions must be long (is_long()), or both contexts must be short.
//
//   std::vector<std::byte> state = save_state(session);      // after 40 tokens, for example
//   restore_state(other, state);                             // other.position() == 40
//   other.evaluate(std::array{next_token});                  // computes logits again
//
// A state has positions [0, position) of every attention layer without a window, the latest positions of layers with a
// window, and the states of recurrent layers. The bytes have the order of a contiguous tensor. The bytes do not depend
// on devices, context or batches. The state begins with a header: magic number, version, model, RoPE factors, cache
// types, rows and checksum. restore_state() checks the header. The header identifies the model by a hash of its
// hyper-parameters, of the names, types and shapes of the weights, and of the first bytes of each weight. Numbers are
// little-endian. The functions block. Only one thread at a time may use a session.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "models/session/session.h"

namespace shoal::models {

/// Waits for queued work and throws its errors.
std::vector<std::byte> save_state(Session& session);

/// Replaces the contents of the session and sets its position to the state's position. No logits are available until
/// evaluate(). Throws InvalidArgument if the bytes are damaged or are not a state, if the model, the cache types or the
/// RoPE factors differ, or if the tokens do not fit into the context. In these cases, the session is unchanged.
void restore_state(Session& session, std::span<const std::byte> state);

}  // namespace shoal::models
