// Events of a meta device: one event on each member, recorded, waited for and synchronized together.
#pragma once

#include <memory>

#include "devices/backend.h"

namespace shoal::meta {

struct MetaState;

/// nullptr when a member has no events.
std::unique_ptr<Event> make_event(std::shared_ptr<MetaState> state);

}  // namespace shoal::meta
