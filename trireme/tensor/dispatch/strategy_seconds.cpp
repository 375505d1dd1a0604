// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dispatch/strategy_seconds.h>

#include <trireme/cluster/collective_cost.h>
#include <trireme/tensor/axis_links.h>

#include <cstddef>

namespace trireme::tensor {
namespace {

// Returns the cost that a strategy leaves to later operators. A Partial input that is passed on to
// several results is not saved: each of them has to be reduced, such as the three gradients of a
// layer norm. Written tensors keep their layout and views have no choice, so both cost nothing.
double put_off(const Strategy& strategy, c10::ArrayRef<Placement> current, const AxisInputs& inputs,
               const DeviceMesh& mesh, int axis) {
  if (!inputs.can_put_off || inputs.result_bytes.size() < 2) return 0;
  bool is_passed_on = false;
  for (std::size_t i = 0; i < current.size(); ++i) {
    is_passed_on = is_passed_on || (current[i].is_partial() && strategy.inputs[i].is_partial());
  }
  if (!is_passed_on) return 0;
  double total = 0;
  for (std::size_t i = 0; i < inputs.result_bytes.size(); ++i) {
    const Placement& placement = strategy.outputs[strategy.outputs.size() == 1 ? 0 : i];
    if (inputs.result_bytes[i] < 0 || !placement.is_partial()) continue;
    total += change_seconds(placement, Replicate{}, inputs.result_bytes[i], mesh, axis);
  }
  return total;
}

}  // namespace

double change_seconds(const Placement& from, const Placement& to, double bytes,
                      const DeviceMesh& mesh, int axis) {
  const std::int64_t ranks = mesh.size(axis);
  if (from == to || ranks == 1) return 0;
  const auto collective_seconds = [&](Collective collective) {
    return seconds_along(*mesh.state(), axis, collective, bytes);
  };
  if (from.is_shard() && to.is_shard() && from.dim() == to.dim()) return 0;
  const cluster::LocalCopy cost = copy_along(*mesh.state(), axis, kCopyOfProcessor);
  const double copy = cost.seconds + bytes / cost.bytes_per_second;
  if (from.is_replicate()) return to.is_shard() ? copy / static_cast<double>(ranks) : copy;
  if (from.is_partial()) {
    if (to.is_shard()) return copy + collective_seconds(Collective::kReduceScatter);
    if (to.is_replicate() || to.is_flat_shard()) {
      return copy + collective_seconds(Collective::kAllReduce);
    }
    return 2 * copy + collective_seconds(Collective::kAllReduce);
  }
  if (from.is_shard() && to.is_shard()) {
    return copy + collective_seconds(Collective::kAllToAll);
  }
  return copy + collective_seconds(Collective::kAllGather);
}

double strategy_seconds(const Strategy& strategy, c10::ArrayRef<Placement> current,
                        const AxisInputs& inputs, const DeviceMesh& mesh, int axis) {
  double total = strategy.seconds;
  for (std::size_t i = 0; i < current.size(); ++i) {
    const Placement& from = current[i];
    const Placement& to = strategy.inputs[i];
    total += change_seconds(from, to, inputs.bytes[i], mesh, axis);
    // reduce-scatter works along dim 0, so another dim needs an all-to-all after it.
    const bool goes_on = from.is_partial() && to.is_shard() && to.dim() > 0;
    if (goes_on) total += change_seconds(Shard{0}, to, inputs.bytes[i], mesh, axis);
    if (inputs.is_written[i]) total += change_seconds(to, from, inputs.bytes[i], mesh, axis);
  }
  return total + put_off(strategy, current, inputs, mesh, axis);
}

}  // namespace trireme::tensor
