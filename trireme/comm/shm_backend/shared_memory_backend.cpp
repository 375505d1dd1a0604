// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/shm_backend/shared_memory_backend.h>

#include <trireme/base/error.h>
#include <trireme/comm/shm_backend/shared_memory_work.h>

#include <algorithm>
#include <utility>

namespace trireme::comm {
namespace {

using c10d::OpType;
using shm::Communicator;

std::size_t bytes_of(const at::Tensor& tensor) { return tensor.nbytes(); }

// A tensor as one piece of memory: itself, or a contiguous copy that is written back at the end.
class Dense {
 public:
  Dense(const at::Tensor& tensor, const char* operation) : tensor_(tensor) {
    if (!tensor.defined() || !tensor.device().is_cpu() || tensor.layout() != at::kStrided) {
      throw UsageError(join_message(operation, " over shared memory was given ",
                                    tensor.defined() ? join_message("a tensor on ", tensor.device(),
                                                                    " of layout ", tensor.layout())
                                                     : std::string("an undefined tensor"),
                                    ", expected a dense one on the CPU"),
                       "copy it with tensor.cpu(), or use an engine for its device");
    }
    memory_ = tensor.is_contiguous() ? tensor : tensor.contiguous();
  }
  void* data() const { return memory_.data_ptr(); }
  std::size_t bytes() const { return bytes_of(memory_); }
  std::size_t count() const { return static_cast<std::size_t>(memory_.numel()); }
  shm::DataType type() const { return to_moved_type(memory_.scalar_type()); }
  void write_back() const {
    if (!memory_.is_same(tensor_)) tensor_.copy_(memory_);
  }

 private:
  at::Tensor tensor_;
  at::Tensor memory_;
};

std::vector<Dense> dense_of(const std::vector<at::Tensor>& tensors, const char* operation) {
  std::vector<Dense> all;
  for (const at::Tensor& tensor : tensors) all.emplace_back(tensor, operation);
  return all;
}

std::vector<void*> pointers_of(const std::vector<Dense>& all) {
  std::vector<void*> pointers;
  for (const Dense& one : all) pointers.push_back(one.data());
  return pointers;
}

std::vector<std::size_t> lengths_of(const std::vector<Dense>& all) {
  std::vector<std::size_t> lengths;
  for (const Dense& one : all) lengths.push_back(one.bytes());
  return lengths;
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* operation) {
  if (tensors.size() != 1) {
    throw UsageError(
        join_message(operation, " was given a list of ", tensors.size(), " tensors, expected one"),
        "make one call per tensor");
  }
  return tensors.front();
}

const std::vector<at::Tensor>& only(const std::vector<std::vector<at::Tensor>>& lists,
                                    std::size_t size, const char* operation) {
  if (lists.size() != 1 || lists.front().size() != size) {
    throw UsageError(
        join_message(
            operation, " over ", size, " ranks was given ", lists.size(), " lists of tensors",
            lists.empty() ? std::string()
                          : join_message(", the first of ", lists.front().size(), " tensors")),
        "give one list with a tensor for each rank");
  }
  return lists.front();
}

shm::Reduction to_reduction(const c10d::ReduceOp& op) {
  using enum shm::ReduceOp;
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return {.op = kSum};
    case c10d::ReduceOp::AVG:
      return {.op = kAverage};
    case c10d::ReduceOp::PRODUCT:
      return {.op = kProduct};
    case c10d::ReduceOp::MIN:
      return {.op = kMinimum};
    case c10d::ReduceOp::MAX:
      return {.op = kMaximum};
    case c10d::ReduceOp::BAND:
      return {.op = kAnd};
    case c10d::ReduceOp::BOR:
      return {.op = kOr};
    case c10d::ReduceOp::BXOR:
      return {.op = kXor};
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* supplement =
          dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      if (supplement == nullptr) break;
      return {.op = kPreMultipliedSum,
              .factor = supplement->tensor_factor.defined()
                            ? supplement->tensor_factor.item<double>()
                            : supplement->double_factor};
    }
    default:
      break;
  }
  throw UsageError(join_message("unknown reduction ", static_cast<int>(op.op_)),
                   "use one of c10d::ReduceOp; a pre-multiplied sum comes from makePreMulSum");
}

void check_dtype(const std::vector<at::Tensor>& tensors, at::ScalarType type,
                 const char* operation) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.scalar_type() == type) continue;
    throw UsageError(
        join_message(operation, " was given tensors of ", type, " and of ", tensor.scalar_type()),
        "give tensors of one dtype");
  }
}

void check_same_length(std::size_t have, std::size_t want, const char* operation,
                       const char* what) {
  if (have == want) return;
  throw UsageError(join_message(operation, ": ", what, " has ", have, " bytes, expected ", want),
                   "size the tensors by the number of ranks");
}

// Bytes of each part of the first dimension; equal parts where no sizes are given.
std::vector<std::size_t> split_bytes(const at::Tensor& tensor,
                                     const std::vector<std::int64_t>& splits, std::size_t ranks,
                                     const char* operation) {
  std::vector<std::size_t> bytes(ranks, tensor.nbytes() / ranks);
  const std::int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (splits.empty()) {
    if (rows % static_cast<std::int64_t>(ranks) != 0) {
      throw UsageError(
          join_message(operation, ": ", rows, " rows do not divide by ", ranks, " ranks"),
          "give split sizes");
    }
    return bytes;
  }
  std::int64_t sum = 0;
  for (const std::int64_t split : splits) sum += split;
  if (splits.size() != ranks || sum != rows) {
    throw UsageError(join_message(operation, ": ", splits.size(), " split sizes with sum ", sum,
                                  " for ", ranks, " ranks and ", rows, " rows"),
                     "give one split size per rank, with the rows as their sum");
  }
  const std::size_t row = rows == 0 ? 0 : tensor.nbytes() / static_cast<std::size_t>(rows);
  std::transform(splits.begin(), splits.end(), bytes.begin(),
                 [&](std::int64_t split) { return static_cast<std::size_t>(split) * row; });
  return bytes;
}

std::vector<void*> offsets_in(void* data, const std::vector<std::size_t>& bytes) {
  std::vector<void*> pointers;
  auto* at = static_cast<std::byte*>(data);
  for (const std::size_t length : bytes) {
    pointers.push_back(at);
    at += length;
  }
  return pointers;
}

std::vector<const void*> constant(const std::vector<void*>& pointers) {
  return {pointers.begin(), pointers.end()};
}

}  // namespace

namespace {

std::optional<shm::DataType> find_type(at::ScalarType type) {
  using enum shm::DataType;
  switch (type) {
    case at::kDouble:
      return kFloat64;
    case at::kFloat:
      return kFloat32;
    case at::kHalf:
      return kFloat16;
    case at::kBFloat16:
      return kBFloat16;
    case at::kChar:
      return kInt8;
    case at::kShort:
      return kInt16;
    case at::kInt:
      return kInt32;
    case at::kLong:
      return kInt64;
    case at::kByte:
      return kUInt8;
    case at::kBool:
      return kBool;
    case at::kComplexFloat:
      return kComplex64;
    case at::kComplexDouble:
      return kComplex128;
    default:
      return std::nullopt;
  }
}

}  // namespace

shm::DataType to_shared_memory_type(at::ScalarType type, const char* operation) {
  if (const auto found = find_type(type)) return *found;
  throw UsageError(join_message(operation, " does not know how to reduce ", type),
                   "use a floating-point, complex, bool, uint8 or signed integer dtype");
}

shm::DataType to_moved_type(at::ScalarType type) {
  return find_type(type).value_or(shm::DataType::kUInt8);
}

SharedMemoryBackend::SharedMemoryBackend(std::shared_ptr<Communicator> communicator)
    : Backend(communicator->rank(), communicator->size()), communicator_(std::move(communicator)) {
  init();
}

SharedMemoryBackend::~SharedMemoryBackend() = default;

c10::intrusive_ptr<SharedMemoryWork> SharedMemoryBackend::make_work(OpType type, const char* title,
                                                                    const Tensors& inputs,
                                                                    Tensors outputs) {
  const std::uint64_t number = num_started_.fetch_add(1, std::memory_order_relaxed) + 1;
  return c10::make_intrusive<SharedMemoryWork>(getRank(), type, title, inputs, std::move(outputs),
                                               number);
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::launch(OpType type, const char* title,
                                                             const Tensors& inputs, Tensors outputs,
                                                             bool is_async,
                                                             std::function<void()> body) {
  auto work = make_work(type, title, inputs, std::move(outputs));
  shm::Queue& queue = communicator_->collectives();
  if (!is_async && !coalesced_) {
    queue.run(body);
    work->complete(nullptr);
    return work;
  }
  work->set_job(queue, queue.submit([work, body = std::move(body)] {
    std::exception_ptr error;
    try {
      body();
    } catch (...) {
      error = std::current_exception();
    }
    work->complete(error);
  }));
  if (coalesced_) coalesced_->emplace_back(work);
  return work;
}

void SharedMemoryBackend::startCoalescing() { coalesced_.emplace(); }

SharedMemoryBackend::WorkPointer SharedMemoryBackend::endCoalescing() {
  auto works = std::exchange(coalesced_, std::nullopt).value_or(std::vector<WorkPointer>{});
  return c10::make_intrusive<CoalescedWork>(getRank(), std::move(works));
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::broadcast(
    Tensors& tensors, const c10d::BroadcastOptions& options) {
  const Dense data(only(tensors, "broadcast"), "broadcast");
  const int root = static_cast<int>(options.rootRank);
  return launch(OpType::BROADCAST, "shm:broadcast", tensors, tensors, options.asyncOp,
                [group = communicator_.get(), data, root] {
                  group->broadcast(data.data(), data.bytes(), root, {}, data.type());
                  data.write_back();
                });
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::allreduce(
    Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only(tensors, "all-reduce");
  const Dense data(tensor, "all-reduce");
  const auto type = to_shared_memory_type(tensor.scalar_type(), "all-reduce");
  const shm::Reduction reduction = to_reduction(options.reduceOp);
  if (!options.asyncOp || coalesced_) {
    return launch(OpType::ALLREDUCE, "shm:all_reduce", tensors, tensors, options.asyncOp,
                  [group = communicator_.get(), data, type, reduction] {
                    group->all_reduce(data.data(), data.data(), data.count(), type, reduction);
                    data.write_back();
                  });
  }
  auto work = make_work(OpType::ALLREDUCE, "shm:all_reduce", tensors, tensors);
  work->set_job(
      communicator_->collectives(),
      communicator_->start_all_reduce(data.data(), data.data(), data.count(), type, reduction, {},
                                      [work, data](std::exception_ptr error) {
                                        if (!error) data.write_back();
                                        work->complete(std::move(error));
                                      }));
  return work;
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  std::vector<std::pair<Dense, shm::DataType>> all;
  for (const at::Tensor& tensor : tensors) {
    all.emplace_back(Dense(tensor, "all-reduce"),
                     to_shared_memory_type(tensor.scalar_type(), "all-reduce"));
  }
  const shm::Reduction reduction = to_reduction(options.reduceOp);
  return launch(OpType::ALLREDUCE_COALESCED, "shm:all_reduce_coalesced", tensors, tensors,
                options.asyncOp, [group = communicator_.get(), all = std::move(all), reduction] {
                  for (const auto& [data, type] : all) {
                    group->all_reduce(data.data(), data.data(), data.count(), type, reduction);
                    data.write_back();
                  }
                });
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::reduce(Tensors& tensors,
                                                             const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = only(tensors, "reduce");
  const Dense data(tensor, "reduce");
  const auto type = to_shared_memory_type(tensor.scalar_type(), "reduce");
  const shm::Reduction reduction = to_reduction(options.reduceOp);
  const int root = static_cast<int>(options.rootRank);
  return launch(OpType::REDUCE, "shm:reduce", tensors, tensors, options.asyncOp,
                [group = communicator_.get(), data, type, reduction, root] {
                  group->reduce(data.data(), data.data(), data.count(), type, reduction, root);
                  if (group->rank() == root) data.write_back();
                });
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::allgather(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const auto ranks = static_cast<std::size_t>(getSize());
  const Tensors& list = only(outputs, ranks, "all-gather");
  const Dense input(only(inputs, "all-gather"), "all-gather");
  auto pieces = dense_of(list, "all-gather");
  check_dtype(list, inputs.front().scalar_type(), "all-gather");
  check_same_length(pieces[static_cast<std::size_t>(getRank())].bytes(), input.bytes(),
                    "all-gather", "this rank's output");
  return launch(OpType::ALLGATHER, "shm:all_gather", inputs, list, options.asyncOp,
                [group = communicator_.get(), input, pieces = std::move(pieces)] {
                  group->all_gather(input.data(), pointers_of(pieces), lengths_of(pieces), {},
                                    input.type());
                  for (const Dense& piece : pieces) piece.write_back();
                });
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  Tensors outputs = {output};
  Tensors inputs = {input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const auto ranks = static_cast<std::size_t>(getSize());
  auto to = dense_of(outputs, "all-gather");
  auto from = dense_of(inputs, "all-gather");
  check_same_length(to.size(), from.size(), "all-gather", "the list of outputs");
  for (std::size_t i = 0; i < to.size(); ++i) {
    check_same_length(to[i].bytes(), from[i].bytes() * ranks, "all-gather", "the output");
  }
  return launch(OpType::_ALLGATHER_BASE, "shm:all_gather_base", inputs, outputs, options.asyncOp,
                [group = communicator_.get(), ranks, to = std::move(to), from = std::move(from)] {
                  for (std::size_t i = 0; i < to.size(); ++i) {
                    const std::vector<std::size_t> bytes(ranks, from[i].bytes());
                    group->all_gather(from[i].data(), offsets_in(to[i].data(), bytes), bytes, {},
                                      from[i].type());
                    to[i].write_back();
                  }
                });
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::gather(std::vector<Tensors>& outputs,
                                                             Tensors& inputs,
                                                             const c10d::GatherOptions& options) {
  const auto ranks = static_cast<std::size_t>(getSize());
  const int root = static_cast<int>(options.rootRank);
  const Dense input(only(inputs, "gather"), "gather");
  Tensors list;
  if (getRank() == root) list = only(outputs, ranks, "gather");
  auto pieces = dense_of(list, "gather");
  check_dtype(list, inputs.front().scalar_type(), "gather");
  for (const Dense& piece : pieces) {
    check_same_length(piece.bytes(), input.bytes(), "gather", "an output");
  }
  return launch(OpType::GATHER, "shm:gather", inputs, list, options.asyncOp,
                [group = communicator_.get(), input, ranks, root, pieces = std::move(pieces)] {
                  std::vector<void*> to = pointers_of(pieces);
                  to.resize(ranks);
                  const std::vector<std::size_t> bytes(ranks, input.bytes());
                  group->gather(input.data(), to, bytes, root, {}, input.type());
                  for (const Dense& piece : pieces) piece.write_back();
                });
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::scatter(Tensors& outputs,
                                                              std::vector<Tensors>& inputs,
                                                              const c10d::ScatterOptions& options) {
  const auto ranks = static_cast<std::size_t>(getSize());
  const int root = static_cast<int>(options.rootRank);
  const Dense output(only(outputs, "scatter"), "scatter");
  Tensors list;
  if (getRank() == root) list = only(inputs, ranks, "scatter");
  auto pieces = dense_of(list, "scatter");
  check_dtype(list, outputs.front().scalar_type(), "scatter");
  for (const Dense& piece : pieces) {
    check_same_length(piece.bytes(), output.bytes(), "scatter", "an input");
  }
  return launch(OpType::SCATTER, "shm:scatter", list, outputs, options.asyncOp,
                [group = communicator_.get(), output, root, pieces = std::move(pieces)] {
                  const auto from = constant(pointers_of(pieces));
                  group->scatter(from, output.data(), output.bytes(), root, {}, output.type());
                  output.write_back();
                });
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) {
  const auto ranks = static_cast<std::size_t>(getSize());
  const Tensors& list = only(inputs, ranks, "reduce-scatter");
  const at::Tensor& output = only(outputs, "reduce-scatter");
  const auto type = to_shared_memory_type(output.scalar_type(), "reduce-scatter");
  const Dense to(output, "reduce-scatter");
  auto pieces = dense_of(list, "reduce-scatter");
  check_dtype(list, output.scalar_type(), "reduce-scatter");
  check_same_length(to.bytes(), pieces[static_cast<std::size_t>(getRank())].bytes(),
                    "reduce-scatter", "the output");
  const shm::Reduction reduction = to_reduction(options.reduceOp);
  return launch(OpType::REDUCE_SCATTER, "shm:reduce_scatter", list, outputs, options.asyncOp,
                [group = communicator_.get(), to, type, reduction, pieces = std::move(pieces)] {
                  // The engine takes pieces that follow each other.
                  std::vector<std::byte> joined;
                  std::vector<std::size_t> counts;
                  for (const Dense& piece : pieces) {
                    const auto* data = static_cast<const std::byte*>(piece.data());
                    joined.insert(joined.end(), data, data + piece.bytes());
                    counts.push_back(piece.count());
                  }
                  group->reduce_scatter(joined.data(), to.data(), counts, type, reduction);
                  to.write_back();
                });
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  Tensors outputs = {output};
  Tensors inputs = {input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  const auto ranks = static_cast<std::size_t>(getSize());
  auto to = dense_of(outputs, "reduce-scatter");
  auto from = dense_of(inputs, "reduce-scatter");
  check_same_length(to.size(), from.size(), "reduce-scatter", "the list of outputs");
  std::vector<shm::DataType> types;
  for (std::size_t i = 0; i < to.size(); ++i) {
    check_same_length(from[i].bytes(), to[i].bytes() * ranks, "reduce-scatter", "the input");
    types.push_back(to_shared_memory_type(outputs[i].scalar_type(), "reduce-scatter"));
  }
  const shm::Reduction reduction = to_reduction(options.reduceOp);
  return launch(
      OpType::_REDUCE_SCATTER_BASE, "shm:reduce_scatter_base", inputs, outputs, options.asyncOp,
      [group = communicator_.get(), ranks, types, reduction, to = std::move(to),
       from = std::move(from)] {
        for (std::size_t i = 0; i < to.size(); ++i) {
          const std::vector<std::size_t> counts(ranks, to[i].count());
          group->reduce_scatter(from[i].data(), to[i].data(), counts, types[i], reduction);
          to[i].write_back();
        }
      });
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::alltoall_base(
    at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
    std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  const auto ranks = static_cast<std::size_t>(getSize());
  const Dense to(output, "all-to-all");
  const Dense from(input, "all-to-all");
  const auto output_bytes = split_bytes(output, output_splits, ranks, "all-to-all");
  const auto input_bytes = split_bytes(input, input_splits, ranks, "all-to-all");
  return launch(OpType::ALLTOALL_BASE, "shm:all_to_all", {input}, {output}, options.asyncOp,
                [group = communicator_.get(), to, from, output_bytes, input_bytes] {
                  group->all_to_all(constant(offsets_in(from.data(), input_bytes)), input_bytes,
                                    offsets_in(to.data(), output_bytes), output_bytes, {},
                                    from.type());
                  to.write_back();
                });
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::alltoall(
    Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  const auto ranks = static_cast<std::size_t>(getSize());
  check_same_length(outputs.size(), ranks, "all-to-all", "the list of outputs");
  check_same_length(inputs.size(), ranks, "all-to-all", "the list of inputs");
  auto to = dense_of(outputs, "all-to-all");
  auto from = dense_of(inputs, "all-to-all");
  check_dtype(outputs, inputs.front().scalar_type(), "all-to-all");
  check_dtype(inputs, inputs.front().scalar_type(), "all-to-all");
  return launch(OpType::ALLTOALL, "shm:all_to_all", inputs, outputs, options.asyncOp,
                [group = communicator_.get(), to = std::move(to), from = std::move(from)] {
                  group->all_to_all(constant(pointers_of(from)), lengths_of(from), pointers_of(to),
                                    lengths_of(to), {}, from.front().type());
                  for (const Dense& output : to) output.write_back();
                });
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::send(Tensors& tensors, int destination,
                                                           int tag) {
  const Dense data(only(tensors, "send"), "send");
  auto work = make_work(OpType::SEND, "shm:send", tensors, tensors);
  follow(work, communicator_->point_to_point().send(data.data(), data.bytes(), destination, tag),
         [] {});
  return work;
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::receive_from(Tensors& tensors, int source,
                                                                   int tag, OpType type) {
  const Dense data(only(tensors, "receive"), "receive");
  auto work = make_work(type, "shm:receive", tensors, tensors);
  const auto transfer =
      communicator_->point_to_point().receive(data.data(), data.bytes(), source, tag);
  follow(work, transfer, [work, data, transfer] {
    work->set_source(transfer->source());
    data.write_back();
  });
  return work;
}

// Completes the work with the transfer, after `end_well` where it ends well. Whoever waits moves
// it; a thread does where nobody waits.
void SharedMemoryBackend::follow(const c10::intrusive_ptr<SharedMemoryWork>& work,
                                 const std::shared_ptr<shm::Transfer>& transfer,
                                 std::function<void()> end_well) {
  shm::PointToPoint& messages = communicator_->point_to_point();
  work->set_transfer(messages, transfer);
  messages.when_done(*transfer, [work, transfer, end_well = std::move(end_well)] {
    std::exception_ptr error = transfer->error();
    try {
      if (!error) end_well();
    } catch (...) {
      error = std::current_exception();
    }
    work->complete(error);
  });
  if (!transfer->is_done()) {
    communicator_->transfers().submit(
        [transfer, group = communicator_.get()] { group->point_to_point().wait(*transfer); });
  }
  if (coalesced_) coalesced_->emplace_back(work);
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::recv(Tensors& tensors, int source, int tag) {
  return receive_from(tensors, source, tag, OpType::RECV);
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::recvAnysource(Tensors& tensors, int tag) {
  return receive_from(tensors, shm::PointToPoint::kAny, tag, OpType::RECVANYSOURCE);
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::barrier(const c10d::BarrierOptions& options) {
  return launch(OpType::BARRIER, "shm:barrier", {}, {}, options.asyncOp,
                [group = communicator_.get()] { group->barrier(); });
}

}  // namespace trireme::comm
