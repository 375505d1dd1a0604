// SPDX-License-Identifier: Apache-2.0
#include <python/native/process_group_backend.h>

#include <trireme/base/error.h>
#include <trireme/comm/adapter/adapter_backend.h>

#include <pybind11/pybind11.h>
#include <python/native/monitored_barrier.h>
#include <python/native/several_tensors.h>
#include <python/native/sparse_all_reduce.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace trireme::python {
namespace {

using WorkPtr = ProcessGroupBackend::WorkPtr;

c10::intrusive_ptr<c10d::Backend::Options> options_of(const GroupRequest& request) {
  auto options = c10::make_intrusive<c10d::Backend::Options>("trireme", request.timeout);
  options->group_name = request.name;
  for (const int rank : request.world_ranks) {
    options->global_ranks_in_group.push_back(static_cast<std::uint64_t>(rank));
  }
  return options;
}

bool is_sparse(const std::vector<at::Tensor>& tensors) {
  return tensors.size() == 1 && tensors.front().defined() && tensors.front().is_sparse();
}

}  // namespace

ProcessGroupBackend::ProcessGroupBackend(GroupRequest request)
    : Backend(request.rank, request.size),
      request_(std::move(request)),
      options_(options_of(request_)),
      group_(connect_group(request_)),
      supports_coalescing_(group_.backend()->supportsCoalescing()) {
  init();
  if (auto* const adapter = dynamic_cast<comm::AdapterBackend*>(group_.backend().get())) {
    adapter->set_profiling_prefix(request_.profiling_prefix);
  }
}

ProcessGroupBackend::~ProcessGroupBackend() { shutdown(); }

c10::intrusive_ptr<c10d::Backend> ProcessGroupBackend::open() {
  const std::lock_guard lock(mutex_);
  if (!is_closed_) return group_.backend();
  throw UsageError(join_message("process group '", request_.name, "' was destroyed on this rank"),
                   "make no calls after destroy_process_group");
}

std::string ProcessGroupBackend::engine() {
  const std::lock_guard lock(mutex_);
  return is_closed_ ? "none" : group_.engine();
}

void ProcessGroupBackend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  open()->setTimeout(timeout);
}

std::uint64_t ProcessGroupBackend::getSequenceNumberForGroup() {
  return open()->getSequenceNumberForGroup();
}

void ProcessGroupBackend::abort() {
  const std::unique_lock lock(mutex_);
  if (!is_closed_) group_.abort(join_message("rank ", getRank(), " aborted the group"));
}

void ProcessGroupBackend::shutdown() {
  // Closing waits for operations, which may run Python code on other threads.
  std::optional<pybind11::gil_scoped_release> no_gil;
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) no_gil.emplace();
  comm::Group closing;
  const std::lock_guard lock(mutex_);
  std::swap(closing, group_);  // closed when `closing` is destroyed, after the lock is released
  is_closed_ = true;
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupBackend::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<Options>& options) {
  const auto own = std::ranges::find(ranks, getRank());
  if (own == ranks.end()) return nullptr;
  GroupRequest part = {.store = store,
                       .rank = static_cast<int>(own - ranks.begin()),
                       .size = static_cast<int>(ranks.size()),
                       .timeout = options ? options->timeout : options_->timeout,
                       .name = options && !options->group_name.empty()
                                   ? options->group_name
                                   : join_message(request_.name, " split"),
                       .world_ranks = {},
                       .profiling_prefix = request_.profiling_prefix};
  for (const int rank : ranks) {
    part.world_ranks.push_back(
        request_.world_ranks.empty() ? rank : request_.world_ranks[static_cast<std::size_t>(rank)]);
  }
  return c10::make_intrusive<ProcessGroupBackend>(std::move(part));
}

WorkPtr ProcessGroupBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  check_broadcast(site(), tensors, options);
  if (tensors.size() > 1) return broadcast_several(*open(), tensors, options);
  return open()->broadcast(tensors, options);
}

WorkPtr ProcessGroupBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  check_all_reduce(tensors, options);
  if (tensors.size() > 1) return all_reduce_several(*open(), tensors, options);
  if (is_sparse(tensors)) return allreduce_sparse(tensors, options);
  return open()->allreduce(tensors, options);
}

WorkPtr ProcessGroupBackend::allreduce_sparse(Tensors& tensors,
                                              const c10d::AllreduceOptions& options) {
  check_all_reduce(tensors, options);
  if (tensors.size() > 1) return all_reduce_several(*open(), tensors, options);
  return sparse_all_reduce(*open(), tensors.front(), options);
}

WorkPtr ProcessGroupBackend::allreduce_coalesced(Tensors& tensors,
                                                 const c10d::AllreduceCoalescedOptions& options) {
  try {
    check_all_reduce_coalesced(tensors);
  } catch (const UsageError&) {
    // PyTorch's manager of coalesced calls makes this one after startCoalescing, and does not end
    // it if the call throws.
    if (supportsCoalescing()) open()->endCoalescing();
    throw;
  }
  return open()->allreduce_coalesced(tensors, options);
}

WorkPtr ProcessGroupBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  check_reduce(site(), tensors, options);
  return open()->reduce(tensors, options);
}

WorkPtr ProcessGroupBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) {
  check_all_gather(site(), outputs, inputs);
  if (inputs.size() > 1) return all_gather_several(*open(), outputs, inputs, options);
  return open()->allgather(outputs, inputs, options);
}

WorkPtr ProcessGroupBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                             const c10d::AllgatherOptions& options) {
  return open()->_allgather_base(output, input, options);
}

WorkPtr ProcessGroupBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                 const c10d::AllgatherOptions& options) {
  check_all_gather_coalesced(site(), outputs, inputs);
  return open()->allgather_coalesced(outputs, inputs, options);
}

WorkPtr ProcessGroupBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return open()->allgather_into_tensor_coalesced(outputs, inputs, options);
}

WorkPtr ProcessGroupBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                    const c10d::GatherOptions& options) {
  check_gather(site(), outputs, inputs, options);
  return open()->gather(outputs, inputs, options);
}

WorkPtr ProcessGroupBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                     const c10d::ScatterOptions& options) {
  check_scatter(site(), outputs, inputs, options);
  return open()->scatter(outputs, inputs, options);
}

WorkPtr ProcessGroupBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                            const c10d::ReduceScatterOptions& options) {
  return open()->reduce_scatter(outputs, inputs, options);
}

WorkPtr ProcessGroupBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::ReduceScatterOptions& options) {
  return open()->_reduce_scatter_base(output, input, options);
}

WorkPtr ProcessGroupBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  return open()->reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

WorkPtr ProcessGroupBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                           std::vector<std::int64_t>& output_splits,
                                           std::vector<std::int64_t>& input_splits,
                                           const c10d::AllToAllOptions& options) {
  return open()->alltoall_base(output, input, output_splits, input_splits, options);
}

WorkPtr ProcessGroupBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                      const c10d::AllToAllOptions& options) {
  return open()->alltoall(outputs, inputs, options);
}

WorkPtr ProcessGroupBackend::send(Tensors& tensors, int destination, int tag) {
  return open()->send(tensors, destination, tag);
}

WorkPtr ProcessGroupBackend::recv(Tensors& tensors, int source, int tag) {
  return open()->recv(tensors, source, tag);
}

WorkPtr ProcessGroupBackend::recvAnysource(Tensors& tensors, int tag) {
  return open()->recvAnysource(tensors, tag);
}

WorkPtr ProcessGroupBackend::barrier(const c10d::BarrierOptions& options) {
  return open()->barrier(options);
}

void ProcessGroupBackend::monitoredBarrier(const c10d::BarrierOptions& options,
                                           bool waits_for_all) {
  static_cast<void>(open());
  monitored_barrier({.store = request_.store,
                     .rank = getRank(),
                     .size = getSize(),
                     .timeout = options.timeout >= kNoTimeout ? options.timeout : options_->timeout,
                     .number = ++num_monitored_barriers_,
                     .waits_for_all = waits_for_all});
}

}  // namespace trireme::python
