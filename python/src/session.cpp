// Session of the module: one sequence with its logits as NumPy arrays.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <mutex>
#include <utility>

#include "models/session/session.h"
#include "python/src/module.h"
#include "python/src/service.h"

namespace shoal::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;
using models::Session;
using Service = OpenService;

/// A session with the number of outputs of its latest evaluation.
struct OpenSession {
  OpenSession(const Service& service, int64_t context)
      : session(
            new Session(service->model(), service->placement(), service->placement().init(), {.context = context})) {}
  /// Throws Error in a child process.
  Session* operator->() const {
    session.get_deleter().check();
    return session.get();
  }
  /// Only without the global interpreter lock. Throws Error in a child process, which may have a copy of a taken lock.
  std::unique_lock<std::mutex> lock() {
    session.get_deleter().check();
    return std::unique_lock(mutex);
  }

  Owned<Session> session;
  std::mutex mutex;  ///< guards `session` and `outputs`
  int64_t outputs = 0;
};

void evaluate(OpenSession& self, const std::vector<int32_t>& tokens, int64_t outputs) {
  const auto lock = self.lock();
  self.outputs = 0;
  self->evaluate(tokens, outputs);
  self->synchronize();
  self.outputs = outputs;
}

using Logits = nb::ndarray<nb::numpy, const float, nb::ndim<2>, nb::c_contig>;

/// Keeps the memory of an array, and the session whose devices own the memory.
struct KeptLogits {
  nb::object session;
  std::shared_ptr<const Buffer> memory;
};

Logits logits(nb::handle_t<OpenSession> owner) {
  auto& self = nb::cast<OpenSession&>(owner);
  auto kept = Owned<KeptLogits>(new KeptLogits{nb::borrow(owner), nullptr});
  const auto [values, rows] = [&] {
    const UnlockedPython release;
    const auto lock = self.lock();
    const std::span<const float> latest = self->logits();
    kept->memory = self->results();
    return std::pair(latest, static_cast<size_t>(self.outputs));
  }();
  const nb::capsule capsule(new Owned<KeptLogits>(std::move(kept)),
                            [](void* owned) noexcept { delete static_cast<Owned<KeptLogits>*>(owned); });
  return Logits(values.data(), {rows, rows > 0 ? values.size() / rows : 0}, capsule);
}

}  // namespace

void bind_session(nb::module_& module) {
  using Release = nb::call_guard<UnlockedPython>;
  nb::class_<OpenSession>(module, "Session",
                          "One sequence with its own KV cache. The calls of several threads follow each other.")
      .def(nb::init<const Service&, int64_t>(), "engine"_a, "context"_a, nb::keep_alive<1, 2>(), Release())
      .def("evaluate", &evaluate, "tokens"_a, "outputs"_a = 1, Release(),
           "Appends tokens, and computes the logits of the last `outputs` tokens. ValueError if the context is full.")
      .def("logits", &logits, nb::sig("def logits(self) -> numpy.typing.NDArray[numpy.float32]"),
           "Logits of the latest evaluate(), f32 [outputs, vocabulary]: a read-only view of the session's memory. "
           "Later calls may change its values.")
      .def(
          "rewind",
          [](OpenSession& self, int64_t position) {
            const auto lock = self.lock();
            self->rewind(position);
          },
          "position"_a, Release(),
          "Removes all tokens from `position` on. ValueError if a recurrent layer has lost the state.")
      .def_prop_ro(
          "position", [](const OpenSession& self) { return self->position(); }, "Number of tokens.")
      .def_prop_ro(
          "context", [](const OpenSession& self) { return self->context(); }, "Maximum number of tokens.");
}

}  // namespace shoal::python
