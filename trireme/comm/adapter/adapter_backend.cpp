// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/adapter/adapter_backend.h>

#include <trireme/base/error.h>
#include <trireme/comm/adapter/pending_operation.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

namespace trireme::comm {
namespace {

using Tensors = AdapterBackend::Tensors;
using WorkPtr = AdapterBackend::WorkPtr;

void check_as_many(std::size_t outputs, std::size_t inputs, OperationKind kind) {
  if (outputs == inputs) return;
  throw UsageError(join_message("coalesced ", name_of(kind), " was given ", inputs, " inputs and ",
                                outputs, " outputs, expected as many"),
                   "give an output for each input");
}

// Returns whether the elements of any two tensors lie in overlapping ranges of memory.
bool share_memory(const Tensors& tensors) {
  std::vector<std::pair<const std::byte*, const std::byte*>> ranges;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.numel() == 0) continue;
    std::int64_t last = 0;
    for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
      last += (tensor.size(dim) - 1) * tensor.stride(dim);
    }
    const auto* const begin = static_cast<const std::byte*>(tensor.const_data_ptr());
    ranges.emplace_back(begin, begin + (last + 1) * tensor.element_size());
  }
  std::ranges::sort(ranges);
  const auto overlap = std::ranges::adjacent_find(
      ranges, [](const auto& one, const auto& next) { return next.first < one.second; });
  return overlap != ranges.end();
}

// Returns the title of an operation for the profiler. Records refer to titles until they end, which
// may be after the backend, so titles are kept. There are as many as kinds and prefixes.
const char* profiling_title_of(const std::string& prefix, const Operation& operation) {
  static std::mutex mutex;
  static auto& titles = *new std::set<std::string>;  // never destroyed: threads may still run
  const bool is_any_source = operation.kind == OperationKind::kReceive && operation.peer < 0;
  std::string title = join_message(prefix, ":", profiling_name_of(operation.kind),
                                   is_any_source ? "AnySource" : "");
  const std::lock_guard lock(mutex);
  return titles.insert(std::move(title)).first->c_str();
}

}  // namespace

AdapterBackend::AdapterBackend(std::shared_ptr<EngineConnection> connection,
                               std::chrono::milliseconds timeout)
    : Backend(connection->rank(), connection->size()),
      connection_(std::move(connection)),
      timeout_(timeout) {
  init();
}

AdapterBackend::~AdapterBackend() = default;

c10::intrusive_ptr<c10d::Backend::Options> AdapterBackend::getBackendOptions() {
  return c10::make_intrusive<Options>(connection_->name(), timeout_.load());
}

void AdapterBackend::setTimeout(std::chrono::milliseconds timeout) {
  timeout_ = timeout;
  connection_->set_timeout(timeout);
}

void AdapterBackend::abort() {
  connection_->abort(join_message("rank ", getRank(), " aborted the group"));
}

WorkPtr AdapterBackend::start(Operation operation, bool is_async, std::chrono::milliseconds timeout,
                              bool is_profiled) {
  // Checked before the operation gets its number, because the other ranks do not count a call that
  // is refused here.
  connection_->check(operation);
  operation.timeout = timeout > kNoTimeout ? timeout : timeout_.load();
  if (!is_message(operation.kind)) operation.number = ++sequence_number_;
  // Records cost time, so they are only made if somebody profiles.
  if (is_profiled && at::hasCallbacks()) {
    operation.profiling_title = profiling_title_of(profiling_prefix_, operation);
  }
  // Between startCoalescing and endCoalescing nothing may block: the caller waits for all works
  // together.
  // A record begins with its work, so a profiled operation gets one before it runs.
  const bool may_run_here = !is_async && !coalesced_ && operation.profiling_title == nullptr;
  if (may_run_here && connection_->try_run(operation)) {
    operation.copy_back();
    return nullptr;
  }
  WorkPtr work = connection_->submit(std::move(operation));
  if (coalesced_) {
    coalesced_->push_back(work);
  } else if (!is_async) {
    work->wait();
    return nullptr;
  }
  return work;
}

template <typename Options>
WorkPtr AdapterBackend::start_all(std::vector<Operation> operations, const Options& options) {
  // Within a coalesced group each operation has its own record, because nobody waits for this work.
  const bool has_one_record = !coalesced_ && !operations.empty() && at::hasCallbacks();
  const char* title = nullptr;
  Tensors tensors;
  if (has_one_record) {
    title = profiling_title_of(profiling_prefix_, operations.front());
    for (const Operation& operation : operations) {
      const Tensors of_one = profiled_tensors(operation);
      tensors.insert(tensors.end(), of_one.begin(), of_one.end());
    }
  }
  auto work = c10::make_intrusive<CoalescedWork>(getRank(), title, tensors);
  for (Operation& operation : operations) {
    WorkPtr one = start(std::move(operation), options.asyncOp, options.timeout, !has_one_record);
    if (one) work->add(std::move(one));
  }
  if (options.asyncOp || coalesced_) return work;
  work->wait(kNoTimeout);  // ends the record
  return nullptr;
}

WorkPtr AdapterBackend::endCoalescing() {
  auto works = std::exchange(coalesced_, std::nullopt).value_or(std::vector<WorkPtr>{});
  auto work = c10::make_intrusive<CoalescedWork>(getRank());
  for (WorkPtr& each : works) work->add(std::move(each));
  return work;
}

WorkPtr AdapterBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  Arguments arguments(OperationKind::kBroadcast, *connection_);
  arguments.set_root(options.rootRank);
  arguments.set_output(arguments.only(tensors));
  return start(std::move(arguments).take(), options.asyncOp, options.timeout);
}

Operation AdapterBackend::all_reduce_of(const at::Tensor& tensor, const c10d::ReduceOp& op) const {
  Arguments arguments(OperationKind::kAllReduce, *connection_);
  arguments.set_output(tensor);
  arguments.set_reduction(op, tensor.scalar_type());
  return std::move(arguments).take();
}

WorkPtr AdapterBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor& tensor = Arguments(OperationKind::kAllReduce, *connection_).only(tensors);
  return start(all_reduce_of(tensor, options.reduceOp), options.asyncOp, options.timeout);
}

WorkPtr AdapterBackend::allreduce_coalesced(Tensors& tensors,
                                            const c10d::AllreduceCoalescedOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  // Tensors in the same memory would be summed several times in place. Each then works on a copy.
  const bool has_overlap = share_memory(tensors);
  std::vector<Operation> operations;
  for (const at::Tensor& tensor : tensors) {
    if (has_overlap) static_cast<void>(all_reduce_of(tensor, options.reduceOp));  // for its checks
    const at::Tensor memory = has_overlap ? tensor.clone(at::MemoryFormat::Contiguous) : tensor;
    operations.push_back(all_reduce_of(memory, options.reduceOp));
    if (!has_overlap) continue;
    operations.back().results = {tensor};
    operations.back().write_back.emplace_back(tensor, memory);
  }
  return start_all(std::move(operations), options);
}

WorkPtr AdapterBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  Arguments arguments(OperationKind::kReduce, *connection_);
  const at::Tensor& tensor = arguments.only(tensors);
  arguments.set_root(options.rootRank);
  arguments.set_output(tensor);
  arguments.set_reduction(options.reduceOp, tensor.scalar_type());
  return start(std::move(arguments).take(), options.asyncOp, options.timeout);
}

Operation AdapterBackend::all_gather_of(const Tensors& outputs, const at::Tensor& input) const {
  Arguments arguments(OperationKind::kAllGather, *connection_);
  arguments.set_input(input);
  arguments.set_outputs(outputs);
  for (const at::Tensor& output : outputs) arguments.check_same_type(output, input);
  arguments.check_elements(outputs[static_cast<std::size_t>(getRank())].numel(), input.numel(),
                           "this rank's output");
  return std::move(arguments).take();
}

Operation AdapterBackend::all_gather_of(const at::Tensor& output, const at::Tensor& input) const {
  Arguments arguments(OperationKind::kAllGather, *connection_);
  arguments.set_input(input);
  arguments.set_output(output, getSize());
  arguments.check_same_type(output, input);
  arguments.check_elements(output.numel(), input.numel() * getSize(), "the output");
  return std::move(arguments).take();
}

WorkPtr AdapterBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const Arguments arguments(OperationKind::kAllGather, *connection_);
  return start(all_gather_of(arguments.only_list(outputs), arguments.only(inputs)), options.asyncOp,
               options.timeout);
}

WorkPtr AdapterBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                        const c10d::AllgatherOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return start(all_gather_of(output, input), options.asyncOp, options.timeout);
}

// outputs[rank][i] receives input i of that rank.
WorkPtr AdapterBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_as_many(outputs.size(), static_cast<std::size_t>(getSize()), OperationKind::kAllGather);
  for (const Tensors& of_rank : outputs) {
    check_as_many(of_rank.size(), inputs.size(), OperationKind::kAllGather);
  }
  std::vector<Operation> operations;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensors of_input;
    for (const Tensors& of_rank : outputs) of_input.push_back(of_rank[i]);
    operations.push_back(all_gather_of(of_input, inputs[i]));
  }
  return start_all(std::move(operations), options);
}

WorkPtr AdapterBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                        const c10d::AllgatherOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_as_many(outputs.size(), inputs.size(), OperationKind::kAllGather);
  std::vector<Operation> operations;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    operations.push_back(all_gather_of(outputs[i], inputs[i]));
  }
  return start_all(std::move(operations), options);
}

WorkPtr AdapterBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                               const c10d::GatherOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  Arguments arguments(OperationKind::kGather, *connection_);
  arguments.set_root(options.rootRank);
  const at::Tensor& input = arguments.only(inputs);
  arguments.set_input(input);
  if (getRank() == options.rootRank) {
    const Tensors& list = arguments.only_list(outputs);
    arguments.set_outputs(list);
    for (const at::Tensor& output : list) {
      arguments.check_same_type(output, input);
      arguments.check_elements(output.numel(), input.numel(), "an output");
    }
  }
  return start(std::move(arguments).take(), options.asyncOp, options.timeout);
}

WorkPtr AdapterBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                const c10d::ScatterOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  Arguments arguments(OperationKind::kScatter, *connection_);
  arguments.set_root(options.rootRank);
  const at::Tensor& output = arguments.only(outputs);
  arguments.set_output(output);
  if (getRank() == options.rootRank) {
    const Tensors& list = arguments.only_list(inputs);
    arguments.set_inputs(list);
    for (const at::Tensor& input : list) {
      arguments.check_same_type(input, output);
      arguments.check_elements(input.numel(), output.numel(), "an input");
    }
  }
  return start(std::move(arguments).take(), options.asyncOp, options.timeout);
}

WorkPtr AdapterBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                       const c10d::ReduceScatterOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  Arguments arguments(OperationKind::kReduceScatter, *connection_);
  const at::Tensor& output = arguments.only(outputs);
  const Tensors& list = arguments.only_list(inputs);
  arguments.set_output(output);
  arguments.set_inputs(list);
  for (const at::Tensor& input : list) arguments.check_same_type(input, output);
  arguments.check_elements(output.numel(), list[static_cast<std::size_t>(getRank())].numel(),
                           "the output");
  arguments.set_reduction(options.reduceOp, output.scalar_type());
  return start(std::move(arguments).take(), options.asyncOp, options.timeout);
}

Operation AdapterBackend::reduce_scatter_of(const at::Tensor& output, const at::Tensor& input,
                                            const c10d::ReduceOp& op) const {
  Arguments arguments(OperationKind::kReduceScatter, *connection_);
  arguments.set_input(input, getSize());
  arguments.set_output(output);
  arguments.check_same_type(input, output);
  arguments.check_elements(input.numel(), output.numel() * getSize(), "the input");
  arguments.set_reduction(op, output.scalar_type());
  return std::move(arguments).take();
}

WorkPtr AdapterBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                             const c10d::ReduceScatterOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return start(reduce_scatter_of(output, input, options.reduceOp), options.asyncOp,
               options.timeout);
}

WorkPtr AdapterBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                        const c10d::ReduceScatterOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_as_many(outputs.size(), inputs.size(), OperationKind::kReduceScatter);
  std::vector<Operation> operations;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    operations.push_back(reduce_scatter_of(outputs[i], inputs[i], options.reduceOp));
  }
  return start_all(std::move(operations), options);
}

WorkPtr AdapterBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                      std::vector<std::int64_t>& output_splits,
                                      std::vector<std::int64_t>& input_splits,
                                      const c10d::AllToAllOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  Arguments arguments(OperationKind::kAllToAll, *connection_);
  arguments.set_input_rows(input, input_splits);
  arguments.set_output_rows(output, output_splits);
  arguments.check_same_type(input, output);
  return start(std::move(arguments).take(), options.asyncOp, options.timeout);
}

WorkPtr AdapterBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                 const c10d::AllToAllOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  Arguments arguments(OperationKind::kAllToAll, *connection_);
  arguments.set_inputs(arguments.only_list({inputs}));
  arguments.set_outputs(arguments.only_list({outputs}));
  for (const Tensors* list : {&inputs, &outputs}) {
    for (const at::Tensor& tensor : *list) arguments.check_same_type(tensor, inputs.front());
  }
  return start(std::move(arguments).take(), options.asyncOp, options.timeout);
}

WorkPtr AdapterBackend::send(Tensors& tensors, int destination, int tag) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  Arguments arguments(OperationKind::kSend, *connection_);
  arguments.set_input(arguments.only(tensors));
  arguments.set_peer(destination, tag);
  return start(std::move(arguments).take());
}

WorkPtr AdapterBackend::recv(Tensors& tensors, int source, int tag) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  Arguments arguments(OperationKind::kReceive, *connection_);
  arguments.set_output(arguments.only(tensors));
  arguments.set_peer(source, tag);
  return start(std::move(arguments).take());
}

WorkPtr AdapterBackend::recvAnysource(Tensors& tensors, int tag) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  Arguments arguments(OperationKind::kReceive, *connection_);
  arguments.set_output(arguments.only(tensors));
  Operation operation = std::move(arguments).take();
  operation.tag = tag;
  return start(std::move(operation));
}

WorkPtr AdapterBackend::barrier(const c10d::BarrierOptions& options) {
  return start({.kind = OperationKind::kBarrier}, options.asyncOp, options.timeout);
}

}  // namespace trireme::comm
