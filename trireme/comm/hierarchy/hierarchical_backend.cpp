// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/hierarchy/hierarchical_backend.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/base/format_ranks.h>

#include <ATen/ops/cat.h>

#include <utility>

namespace trireme::comm {
namespace {

using c10d::OpType;
using Tensors = HierarchicalBackend::Tensors;
using WorkPtr = HierarchicalBackend::WorkPtr;

// A tensor as phases see it: flat, contiguous, without autograd.
struct Flat {
  at::Tensor original;
  at::Tensor flat;

  Flat(const at::Tensor& tensor, const char* operation) {
    if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.device().is_cpu()) {
      throw UsageError(
          join_message(operation, " over hosts was given ",
                       tensor.defined() ? join_message("a tensor of layout ", tensor.layout(),
                                                       " on ", tensor.device())
                                        : std::string("an undefined tensor"),
                       ", expected a dense one on the CPU"),
          "engines of an accelerator know hosts themselves: use them for all ranks, without a "
          "hierarchy");
    }
    original = tensor.detach();
    flat = original.contiguous().view({-1});
  }

  at::Tensor bytes() const { return bytes_of(flat); }

  // Brings a result to where the caller wants it.
  void write_back() const {
    if (!flat.is_alias_of(original)) original.copy_(flat.view(original.sizes()));
  }
};

std::vector<Flat> flatten(const Tensors& tensors, const char* operation) {
  std::vector<Flat> flat;
  flat.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) flat.emplace_back(tensor, operation);
  return flat;
}

Tensors bytes_of_all(const std::vector<Flat>& tensors) {
  Tensors bytes;
  bytes.reserve(tensors.size());
  for (const Flat& tensor : tensors) bytes.push_back(tensor.bytes());
  return bytes;
}

Tensors flats_of_all(const std::vector<Flat>& tensors) {
  Tensors flats;
  flats.reserve(tensors.size());
  for (const Flat& tensor : tensors) flats.push_back(tensor.flat);
  return flats;
}

void write_back(const std::vector<Flat>& tensors) {
  for (const Flat& tensor : tensors) tensor.write_back();
}

void check_count(std::size_t count, std::size_t expected, const char* operation, const char* what) {
  if (count == expected) return;
  throw UsageError(
      join_message(operation, " over hosts was given ", count, " ", what, ", expected ", expected),
      "give one tensor for each call, and in a list by rank one for each rank");
}

// The parts of `whole` for each of `count` ranks, along memory.
Tensors equal_parts(const at::Tensor& whole, std::int64_t part, int count, const char* operation) {
  if (whole.numel() != part * count) {
    throw UsageError(join_message(operation, " over ", count, " ranks: ", whole.numel(),
                                  " elements on the large side, ", part, " on the small side"),
                     join_message("the large side needs ", count, " times the small one"));
  }
  Tensors parts;
  for (int rank = 0; rank < count; ++rank) parts.push_back(whole.narrow(0, rank * part, part));
  return parts;
}

void check_dtypes(const Tensors& tensors, const at::Tensor& output, const char* operation) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.scalar_type() == output.scalar_type()) continue;
    throw UsageError(join_message(operation, " over hosts from ", tensor.scalar_type(), " into ",
                                  output.scalar_type()),
                     "give input and output of one dtype");
  }
}

void check_lengths(const Tensors& tensors, const at::Tensor& own, const char* operation) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == own.numel()) continue;
    throw UsageError(join_message(operation, " over hosts: a rank's share has ", tensor.numel(),
                                  " bytes, this rank's own has ", own.numel()),
                     "the shares of all ranks have one size");
  }
}

// The parts of a buffer for all-to-all: split along dimension 0, or equally where `splits` is
// empty.
Tensors split_parts(const Flat& buffer, const std::vector<int64_t>& splits, int ranks,
                    const char* which) {
  const std::int64_t rows = buffer.original.dim() == 0 ? 1 : buffer.original.size(0);
  std::int64_t expected = 0;
  for (const std::int64_t split : splits) expected += split;
  const bool fits = splits.empty()
                        ? rows % ranks == 0
                        : splits.size() == static_cast<std::size_t>(ranks) && expected == rows;
  if (!fits) {
    throw UsageError(
        join_message("all-to-all over ", ranks, " ranks: ", which, " has ", rows, " rows, but ",
                     splits.empty()
                         ? std::string("no split sizes")
                         : join_message(splits.size(), " split sizes that sum to ", expected)),
        "give one split size for each rank that sum to the rows, or none where the rows divide by "
        "the ranks");
  }
  const at::Tensor bytes = buffer.bytes();
  const std::int64_t row = rows == 0 ? 0 : bytes.numel() / rows;
  Tensors parts;
  std::int64_t begin = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t length =
        row * (splits.empty() ? rows / ranks : splits[static_cast<std::size_t>(rank)]);
    parts.push_back(bytes.narrow(0, begin, length));
    begin += length;
  }
  return parts;
}

// A receive inside a host, which knows its source by local rank only.
class LocalReceive : public c10d::Work {
 public:
  LocalReceive(c10::intrusive_ptr<c10d::Work> work, int source)
      : work_(std::move(work)), source_(source) {}

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return source_; }
  std::vector<at::Tensor> result() override { return work_->result(); }
  void synchronize() override { work_->synchronize(); }
  bool wait(std::chrono::milliseconds timeout) override { return work_->wait(timeout); }
  void abort() override { work_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return work_->getFuture(); }
  std::uint64_t getSequencenumber() const override { return work_->getSequencenumber(); }

 private:
  const c10::intrusive_ptr<c10d::Work> work_;
  const int source_;
};

std::string name_of(const c10::intrusive_ptr<c10d::Backend>& backend) {
  return backend ? backend->getBackendName() : "none";
}

}  // namespace

HierarchicalBackend::HierarchicalBackend(int rank, HostMap hosts, HierarchyConnections connections,
                                         Options options)
    : Backend(rank, hosts.num_ranks()),
      hosts_(std::move(hosts)),
      options_(std::move(options)),
      inside_name_(name_of(connections.inside)),
      across_name_(name_of(connections.across)),
      flat_name_(name_of(connections.flat)),
      connections_(std::move(connections)),
      timeout_(options_.timeout) {
  if (rank < 0 || rank >= hosts_.num_ranks() || timeout_ <= std::chrono::milliseconds::zero()) {
    throw UsageError(join_message("rank ", rank, " of a hierarchy of ", hosts_.num_ranks(),
                                  " ranks with a timeout of ", timeout_.count(), " ms"),
                     "give a rank of the group, and a timeout above 0");
  }
  const int host = hosts_.host_of(rank);
  const int local = hosts_.local_of(rank);
  const bool leads = local < hosts_.num_leaders() && hosts_.num_hosts() > 1;
  const auto local_size = static_cast<std::size_t>(hosts_.local_size(host));
  check_connection("inside the host", connections_.inside, local, local_size > 1 ? local_size : 0);
  check_connection("across hosts", connections_.across, host,
                   leads ? static_cast<std::size_t>(hosts_.num_hosts()) : 0);
  check_connection("between all ranks", connections_.flat, rank,
                   hosts_.num_hosts() > 1 ? static_cast<std::size_t>(hosts_.num_ranks()) : 0);
  worker_ = std::make_unique<Worker>();
}

HierarchicalBackend::~HierarchicalBackend() { worker_.reset(); }

void HierarchicalBackend::check_connection(const char* which,
                                           const c10::intrusive_ptr<c10d::Backend>& connection,
                                           int rank, std::size_t size) const {
  const bool fits = size == 0 ? connection == nullptr
                              : connection != nullptr && connection->getRank() == rank &&
                                    connection->getSize() == static_cast<int>(size);
  if (fits) return;
  throw UsageError(
      join_message("the connection ", which, " of rank ", rank_, " is ",
                   connection == nullptr ? std::string("missing")
                                         : join_message("rank ", connection->getRank(), " of ",
                                                        connection->getSize()),
                   ", expected ",
                   size == 0 ? std::string("none") : join_message("rank ", rank, " of ", size)),
      "connect the ranks of a host in rank order, and the leaders of one place in host order");
}

c10::intrusive_ptr<c10d::Backend::Options> HierarchicalBackend::getBackendOptions() {
  const std::lock_guard lock(mutex_);
  return c10::make_intrusive<Backend::Options>(options_.name, timeout_);
}

void HierarchicalBackend::setTimeout(std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  timeout_ = timeout;
}

uint64_t HierarchicalBackend::getSequenceNumberForGroup() {
  const std::lock_guard lock(mutex_);
  return sequence_number_;
}

void HierarchicalBackend::abort() {
  const HierarchyConnections closing = break_down("this rank aborted it");
  for (const auto& backend : {closing.inside, closing.across, closing.flat}) {
    if (backend) backend->abort();
  }
}

HierarchyConnections HierarchicalBackend::break_down(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (broken_.empty()) broken_ = reason;
  return std::exchange(connections_, {});
}

HierarchyConnections HierarchicalBackend::connections_or_throw() {
  const std::lock_guard lock(mutex_);
  if (broken_.empty()) return connections_;
  throw CommError(join_message("this group broke before: ", broken_),
                  "make a new group, or end the process");
}

std::string HierarchicalBackend::describe(Phase phase) const {
  const int host = hosts_.host_of(rank_);
  const int local = hosts_.local_of(rank_);
  switch (phase) {
    case Phase::kQueue:
      return "waiting for earlier collectives of the group";
    case Phase::kInside:
      return join_message("inside host ", host, " (", format_ranks(hosts_.members(host)), " by ",
                          inside_name_, ")");
    case Phase::kAcross:
      return join_message("across hosts (", format_ranks(hosts_.leaders(local)), " by ",
                          across_name_, ")");
    case Phase::kFlat:
      return join_message("between all ranks (by ", flat_name_, ")");
  }
  throw InternalError("unknown phase", "this is a defect in Trireme; please report it");
}

WorkPtr HierarchicalBackend::submit(OpType type, const char* operation, Tensors outputs,
                                    std::chrono::milliseconds timeout, Body body) {
  connections_or_throw();
  // The order of numbers is the order in which the worker runs them.
  const std::lock_guard lock(mutex_);
  auto work = c10::make_intrusive<PhasedWork>(
      rank_, type, operation, ++sequence_number_,
      timeout <= std::chrono::milliseconds::zero() ? timeout_ : timeout, std::move(outputs),
      [this](Phase phase) { return describe(phase); });
  worker_->submit([this, work, body = std::move(body)] { run(work, body); });
  return work;
}

void HierarchicalBackend::run(const c10::intrusive_ptr<PhasedWork>& work, const Body& body) {
  std::exception_ptr failure;
  HierarchyConnections closing;  // after the news is out, for an engine may take its time
  try {
    Phases phases(hosts_, rank_, connections_or_throw(), options_.one_leader_below, scratch_,
                  *work);
    body(phases);
  } catch (const UsageError&) {  // an engine refused its arguments, on every rank alike
    failure = std::current_exception();
  } catch (const std::exception& cause) {
    failure = std::current_exception();
    const std::string text = message_of(cause);
    closing = break_down(text.substr(0, text.find('\n')));
  }
  work->complete(failure);
}

int HierarchicalBackend::check_peer(int peer, const char* operation) const {
  if (peer >= 0 && peer < size_ && peer != rank_) return peer;
  throw UsageError(join_message(operation, " over hosts: rank ", rank_, " named rank ", peer,
                                " of ", size_, " ranks"),
                   "name another rank that is in the group");
}

int HierarchicalBackend::check_root(std::int64_t root, const char* operation) const {
  if (root >= 0 && root < size_) return static_cast<int>(root);
  throw UsageError(join_message(operation, " over hosts with root ", root, " of ", size_, " ranks"),
                   "give a root that is in the group");
}

// ---- Reductions

WorkPtr HierarchicalBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  check_count(tensors.size(), 1, "all-reduce", "tensors");
  return submit(OpType::ALLREDUCE, "all-reduce", tensors, options.timeout,
                [tensor = Flat(tensors[0], "all-reduce"), op = options.reduceOp](Phases& phases) {
                  phases.all_reduce(tensor.flat, op);
                  tensor.write_back();
                });
}

WorkPtr HierarchicalBackend::allreduce_coalesced(Tensors& tensors,
                                                 const c10d::AllreduceCoalescedOptions& options) {
  return submit(
      OpType::ALLREDUCE_COALESCED, "coalesced all-reduce", tensors, options.timeout,
      [list = flatten(tensors, "coalesced all-reduce"), op = options.reduceOp](Phases& phases) {
        for (const Flat& tensor : list) phases.all_reduce(tensor.flat, op);
        write_back(list);
      });
}

WorkPtr HierarchicalBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  check_count(tensors.size(), 1, "reduce", "tensors");
  return submit(OpType::REDUCE, "reduce", tensors, options.timeout,
                [tensor = Flat(tensors[0], "reduce"), op = options.reduceOp,
                 root = check_root(options.rootRank, "reduce")](Phases& phases) {
                  phases.reduce(tensor.flat, root, op);
                  tensor.write_back();
                });
}

WorkPtr HierarchicalBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                            const c10d::ReduceScatterOptions& options) {
  const char* const operation = "reduce-scatter";
  check_count(outputs.size(), 1, operation, "outputs");
  check_count(inputs.size(), 1, operation, "lists of inputs");
  check_count(inputs[0].size(), static_cast<std::size_t>(size_), operation, "inputs");
  const Flat output(outputs[0], operation);
  auto list = flats_of_all(flatten(inputs[0], operation));
  check_dtypes(list, output.flat, operation);
  check_count(static_cast<std::size_t>(list[static_cast<std::size_t>(rank_)].numel()),
              static_cast<std::size_t>(output.flat.numel()), operation,
              "elements in this rank's input");
  return submit(OpType::REDUCE_SCATTER, operation, outputs, options.timeout,
                [output, list = std::move(list), op = options.reduceOp](Phases& phases) {
                  phases.reduce_scatter(list, output.flat, op);
                  output.write_back();
                });
}

WorkPtr HierarchicalBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::ReduceScatterOptions& options) {
  Tensors outputs = {output};
  Tensors inputs = {input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

WorkPtr HierarchicalBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  const char* const operation = "reduce-scatter";
  check_count(inputs.size(), outputs.size(), operation, "inputs");
  auto list = flatten(outputs, operation);
  std::vector<Tensors> parts;
  for (std::size_t i = 0; i < list.size(); ++i) {
    parts.push_back(
        equal_parts(Flat(inputs[i], operation).flat, list[i].flat.numel(), size_, operation));
    check_dtypes(parts[i], list[i].flat, operation);
  }
  return submit(
      OpType::_REDUCE_SCATTER_BASE, operation, outputs, options.timeout,
      [list = std::move(list), parts = std::move(parts), op = options.reduceOp](Phases& phases) {
        for (std::size_t i = 0; i < list.size(); ++i) {
          phases.reduce_scatter(parts[i], list[i].flat, op);
        }
        write_back(list);
      });
}

// ---- Exchanges

WorkPtr HierarchicalBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  check_count(tensors.size(), 1, "broadcast", "tensors");
  return submit(OpType::BROADCAST, "broadcast", tensors, options.timeout,
                [tensor = Flat(tensors[0], "broadcast"),
                 root = check_root(options.rootRank, "broadcast")](Phases& phases) {
                  phases.broadcast(tensor.bytes(), root);
                  tensor.write_back();
                });
}

WorkPtr HierarchicalBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) {
  check_count(outputs.size(), 1, "all-gather", "lists of outputs");
  check_count(inputs.size(), 1, "all-gather", "inputs");
  return allgather_coalesced(outputs, inputs, options);
}

WorkPtr HierarchicalBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                 const c10d::AllgatherOptions& options) {
  const char* const operation = "all-gather";
  check_count(outputs.size(), inputs.size(), operation, "lists of outputs");
  std::vector<std::vector<Flat>> lists;
  Tensors all;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_count(outputs[i].size(), static_cast<std::size_t>(size_), operation, "outputs");
    lists.push_back(flatten(outputs[i], operation));
    check_lengths({lists[i][static_cast<std::size_t>(rank_)].bytes()},
                  Flat(inputs[i], operation).bytes(), operation);
    all.insert(all.end(), outputs[i].begin(), outputs[i].end());
  }
  return submit(OpType::ALLGATHER, operation, std::move(all), options.timeout,
                [list = flatten(inputs, operation), lists = std::move(lists)](Phases& phases) {
                  for (std::size_t i = 0; i < list.size(); ++i) {
                    phases.all_gather(list[i].bytes(), bytes_of_all(lists[i]));
                    write_back(lists[i]);
                  }
                });
}

WorkPtr HierarchicalBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                             const c10d::AllgatherOptions& options) {
  Tensors outputs = {output};
  Tensors inputs = {input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

WorkPtr HierarchicalBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const char* const operation = "all-gather";
  check_count(outputs.size(), inputs.size(), operation, "outputs");
  auto into = flatten(outputs, operation);
  auto from = bytes_of_all(flatten(inputs, operation));
  std::vector<Tensors> parts;
  for (std::size_t i = 0; i < into.size(); ++i) {
    parts.push_back(equal_parts(into[i].bytes(), from[i].numel(), size_, operation));
  }
  return submit(
      OpType::_ALLGATHER_BASE, operation, outputs, options.timeout,
      [into = std::move(into), from = std::move(from), parts = std::move(parts)](Phases& phases) {
        for (std::size_t i = 0; i < into.size(); ++i) {
          phases.all_gather(from[i], parts[i]);
        }
        write_back(into);
      });
}

WorkPtr HierarchicalBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                    const c10d::GatherOptions& options) {
  const char* const operation = "gather";
  const int root = check_root(options.rootRank, operation);
  check_count(inputs.size(), 1, operation, "inputs");
  const at::Tensor input = Flat(inputs[0], operation).bytes();
  std::vector<Flat> list;
  if (rank_ == root) {
    check_count(outputs.size(), 1, operation, "lists of outputs");
    check_count(outputs[0].size(), static_cast<std::size_t>(size_), operation, "outputs");
    list = flatten(outputs[0], operation);
    check_lengths(bytes_of_all(list), input, operation);
  }
  return submit(OpType::GATHER, operation, rank_ == root ? outputs[0] : Tensors(), options.timeout,
                [input, root, list = std::move(list)](Phases& phases) {
                  phases.gather(input, bytes_of_all(list), root);
                  write_back(list);
                });
}

WorkPtr HierarchicalBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                     const c10d::ScatterOptions& options) {
  const char* const operation = "scatter";
  const int root = check_root(options.rootRank, operation);
  check_count(outputs.size(), 1, operation, "outputs");
  const Flat output(outputs[0], operation);
  Tensors list;
  if (rank_ == root) {
    check_count(inputs.size(), 1, operation, "lists of inputs");
    check_count(inputs[0].size(), static_cast<std::size_t>(size_), operation, "inputs");
    list = bytes_of_all(flatten(inputs[0], operation));
    check_lengths(list, output.bytes(), operation);
  }
  return submit(OpType::SCATTER, operation, outputs, options.timeout,
                [output, root, list = std::move(list)](Phases& phases) {
                  phases.scatter(list, output.bytes(), root);
                  output.write_back();
                });
}

WorkPtr HierarchicalBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                           std::vector<int64_t>& output_splits,
                                           std::vector<int64_t>& input_splits,
                                           const c10d::AllToAllOptions& options) {
  const Flat to(output, "all-to-all");
  auto inputs = split_parts(Flat(input, "all-to-all"), input_splits, size_, "the input");
  auto outputs = split_parts(to, output_splits, size_, "the output");
  check_lengths({outputs[static_cast<std::size_t>(rank_)]}, inputs[static_cast<std::size_t>(rank_)],
                "all-to-all");
  return submit(OpType::ALLTOALL_BASE, "all-to-all", {output}, options.timeout,
                [to, inputs = std::move(inputs), outputs = std::move(outputs)](Phases& phases) {
                  phases.all_to_all(inputs, outputs);
                  to.write_back();
                });
}

WorkPtr HierarchicalBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                      const c10d::AllToAllOptions& options) {
  const char* const operation = "all-to-all";
  check_count(outputs.size(), static_cast<std::size_t>(size_), operation, "outputs");
  check_count(inputs.size(), static_cast<std::size_t>(size_), operation, "inputs");
  auto to = flatten(outputs, operation);
  auto from = bytes_of_all(flatten(inputs, operation));
  check_lengths({to[static_cast<std::size_t>(rank_)].bytes()},
                from[static_cast<std::size_t>(rank_)], operation);
  return submit(OpType::ALLTOALL, operation, outputs, options.timeout,
                [to = std::move(to), from = std::move(from)](Phases& phases) {
                  phases.all_to_all(from, bytes_of_all(to));
                  write_back(to);
                });
}

WorkPtr HierarchicalBackend::barrier(const c10d::BarrierOptions& options) {
  return submit(OpType::BARRIER, "barrier", {}, options.timeout,
                [](Phases& phases) { phases.barrier(); });
}

// ---- From one rank to another

WorkPtr HierarchicalBackend::send(Tensors& tensors, int destination, int tag) {
  const HierarchyConnections connections = connections_or_throw();
  check_peer(destination, "send");
  const bool is_near = hosts_.host_of(destination) == hosts_.host_of(rank_);
  if (!is_near || (options_.receive_from_any && connections.flat)) {
    return connections.flat->send(tensors, destination, tag);
  }
  return connections.inside->send(tensors, hosts_.local_of(destination), tag);
}

WorkPtr HierarchicalBackend::recv(Tensors& tensors, int source, int tag) {
  const HierarchyConnections connections = connections_or_throw();
  check_peer(source, "receive");
  const bool is_near = hosts_.host_of(source) == hosts_.host_of(rank_);
  if (!is_near || (options_.receive_from_any && connections.flat)) {
    return connections.flat->recv(tensors, source, tag);
  }
  return c10::make_intrusive<LocalReceive>(
      connections.inside->recv(tensors, hosts_.local_of(source), tag), source);
}

WorkPtr HierarchicalBackend::recvAnysource(Tensors& tensors, int tag) {
  const HierarchyConnections connections = connections_or_throw();
  if (!connections.flat) return connections.inside->recvAnysource(tensors, tag);
  if (options_.receive_from_any || !connections.inside) {
    return connections.flat->recvAnysource(tensors, tag);
  }
  throw UsageError(
      "receive from any rank, over hosts: a message may come by one of two engines, and neither "
      "can be asked whether one is there",
      "name the source, or set HierarchicalBackend::Options::receive_from_any on all ranks");
}

}  // namespace trireme::comm
