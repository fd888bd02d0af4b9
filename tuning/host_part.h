// Where devices have no room for a model: what of it stays on the host beside them, and computes there or is brought
// from there for large batches. As little as has to: the experts of the first layers, of which a token uses few, or
// whole layers, or both. What of that is fastest is for predictions to say.
//
//   4 x 24 GB, 404 GB of DeepSeek V3:  -ncmoe 49 with layers divided; -ncmoe 50 with all devices on each layer; -ngl 13
#pragma once

#include <optional>
#include <vector>

#include "tuning/fit.h"
#include "tuning/predict.h"

namespace shoal::tuning {

/// Where something can stay on a host: the one of the options, or a CPU of this machine. nullptr: beside CPUs, which
/// have the same memory, or where the options say themselves what stays on the host.
Device* host_beside(std::span<Device* const> devices, const models::PlacementOptions& options);

/// The options with everything on the host: a placement of these has the host among its devices.
models::PlacementOptions with_all_on_host(models::PlacementOptions options);

/// Each way to leave as little as possible on the host: experts (where the model has some) and layers, those with the
/// devices of `way` as one and those with layers divided, which then are as many for each device as it has room for.
/// Only ways that fit, with the margin of `fit`, into the context of the session; if none does, ways in which the host
/// reads its weights from the disk; empty if these do not fit either.
/// `ways`: devices and modes to look at; their shares count for devices as one.
std::vector<Candidate> host_parts(const Scenario& scenario, std::span<const Candidate> ways, FitOptions fit);

}  // namespace shoal::tuning
