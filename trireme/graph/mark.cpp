// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/mark.h>

#include <trireme/base/error.h>
#include <trireme/graph/record/recorder.h>

namespace trireme {

at::Tensor mark(at::Tensor tensor, std::string_view name) {
  if (name.empty()) {
    throw UsageError("a mark has an empty name", "name the place, such as mark(x, \"decoder\")");
  }
  if (auto* const recorder = graph::detail::Recorder::of_thread()) recorder->mark(tensor, name);
  return tensor;
}

}  // namespace trireme
