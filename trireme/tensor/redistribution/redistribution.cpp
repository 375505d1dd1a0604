// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/redistribution/redistribution.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/tensor/redistribution/path.h>
#include <trireme/tensor/redistribution/redistribution_program.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/alias.h>

#include <cmath>

namespace trireme::tensor {
namespace {

void check(c10::ArrayRef<std::int64_t> sizes, const Layout& from, const Layout& to) {
  if (!from.defined() || !to.defined()) {
    throw UsageError(
        join_message("a redistribution from ", from.to_string(), " to ", to.to_string()),
        "give a layout on both sides: a plain tensor is distributed first");
  }
  if (from.mesh_state() != to.mesh_state()) {
    throw UsageError(join_message("a redistribution from ", from.to_string(), " over mesh ",
                                  from.mesh().to_string(), " to ", to.to_string(), " over mesh ",
                                  to.mesh().to_string(), ", which is another one"),
                     "use copies of one mesh, or redistribute_between for two");
  }
  // local_sizes() throws where a layout does not fit.
  const c10::SmallVector<std::int64_t, 4> origin(from.placements().size(), 0);
  local_sizes(sizes, from, origin);
  local_sizes(sizes, to, origin);
}

}  // namespace

const char* to_string(RedistributionStep::Kind kind) {
  switch (kind) {
    case RedistributionStep::Kind::kAllGather:
      return "all-gather";
    case RedistributionStep::Kind::kAllToAll:
      return "all-to-all";
    case RedistributionStep::Kind::kAllReduce:
      return "all-reduce";
    case RedistributionStep::Kind::kReduceScatter:
      return "reduce-scatter";
    case RedistributionStep::Kind::kSlice:
      return "slice";
    case RedistributionStep::Kind::kToPartial:
      return "neutral elements";
  }
  throw InternalError("unknown kind of step", "this is a defect in Trireme; please report it");
}

Redistribution::Redistribution(c10::ArrayRef<std::int64_t> sizes, at::ScalarType dtype,
                               const Layout& from, const Layout& to, at::MemoryFormat format) {
  check(sizes, from, to);
  if (from == to) return;
  Layout before = from;
  for (const PathStep& step : find_path(sizes, dtype, from, to, format)) {
    const Layout after(from.mesh(), step.after);
    steps_.push_back({.kind = step.kind,
                      .axis = step.axis,
                      .from = before,
                      .to = after,
                      .bytes_sent = step.bytes_sent,
                      .seconds = step.seconds});
    before = after;
    seconds_ += step.seconds;
    bytes_sent_ += step.bytes_sent;
  }
  if (steps_.empty()) return;  // the layouts differ only on axes of one rank
  steps_.back().to = to;
  if (!from.mesh().contains_this_rank()) return;
  program_ = std::make_shared<const Program>(compile(steps_, sizes, dtype, format));
}

at::Tensor Redistribution::operator()(const at::Tensor& local, std::string_view label) const {
  if (steps_.empty()) return local;
  if (!program_) {
    const DeviceMesh mesh = steps_.front().from.mesh();
    mesh.coordinate();  // throws, because this rank has none
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  // The key marks memory that is filled when an operator touches it (a ZeRO level 3 parameter that
  // is also sharded along another axis). Here it is read without an operator, so alias() touches
  // it.
  const bool is_watched = local.key_set().has(c10::DispatchKey::DeferredInit);
  InFlightTensor in_flight =
      begin_transfer(*program_, is_watched ? at::alias(local) : local, label);
  for (const Action& action : program_->actions) execute(action, in_flight, label);
  return finish_transfer(*program_, in_flight);
}

std::string Redistribution::to_string() const {
  if (steps_.empty()) return "nothing to do";
  TextWriter text;
  for (const RedistributionStep& step : steps_) {
    text << (&step == &steps_.front() ? "" : "\n") << step.from.mesh().axis_name(step.axis) << ": "
         << step.from[step.axis].to_string() << " -> " << step.to[step.axis].to_string() << " by "
         << tensor::to_string(step.kind);
    if (step.bytes_sent > 0) {
      text << ", " << std::llround(step.bytes_sent) << " bytes";
    }
  }
  return text.str();
}

double redistribution_seconds(c10::ArrayRef<std::int64_t> sizes, at::ScalarType dtype,
                              const Layout& from, const Layout& to, at::MemoryFormat format) {
  check(sizes, from, to);
  if (from == to) return 0;
  double seconds = 0;
  for (const PathStep& step : find_path(sizes, dtype, from, to, format)) seconds += step.seconds;
  return seconds;
}

}  // namespace trireme::tensor
