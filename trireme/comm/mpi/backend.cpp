// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/mpi/backend.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/comm/mpi/buffers.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace trireme::comm::mpi {
namespace {

using c10d::OpType;
using Tensors = MpiBackend::Tensors;

constexpr const char* kOneDevice = "a rank has one device: make one call per tensor";
constexpr const char* kOneForEach = "give one for each rank";
constexpr const char* kBySize = "size the tensors by the number of ranks";

const at::Tensor& only(const Tensors& tensors, const char* title) {
  require(tensors.size() == 1, kOneDevice, title, " was given ", tensors.size(),
          " tensors, expected 1");
  return tensors.front();
}

const Tensors& only(const std::vector<Tensors>& lists, const char* title, int size) {
  require(lists.size() == 1, kOneDevice, title, " was given ", lists.size(),
          " lists of tensors, expected 1");
  require(lists.front().size() == static_cast<std::size_t>(size), kOneForEach, title, " was given ",
          lists.front().size(), " tensors for ", size, " ranks");
  return lists.front();
}

void check_none(const std::vector<Tensors>& lists, const char* title) {
  require(lists.empty(), "only the root gives them", title,
          " was given a list of tensors on a rank other than the root");
}

void check_same_type(const at::Tensor& one, const at::Tensor& other, const char* title) {
  require(one.scalar_type() == other.scalar_type(), "convert one of the tensors", title,
          " was given dtypes ", one.scalar_type(), " and ", other.scalar_type(), ", expected one");
}

void check_elements(const at::Tensor& tensor, std::int64_t expected, const char* title,
                    const char* what) {
  require(tensor.numel() == expected, kBySize, title, ": ", what, " has ", tensor.numel(),
          " elements, expected ", expected);
}

// `whole` holds a slice like `slice` of every rank.
void check_slices(const at::Tensor& whole, const at::Tensor& slice, int size, const char* title,
                  const char* whole_is) {
  check_same_type(whole, slice, title);
  check_elements(whole, slice.numel() * size, title, whole_is);
}

// All tensors one after the other, as one dimension.
at::Tensor joined(const Tensors& tensors) {
  Tensors flat(tensors.size());
  std::ranges::transform(tensors, flat.begin(),
                         [](const at::Tensor& tensor) { return tensor.reshape({-1}); });
  return at::cat(flat);
}

// Makes `work` cut `flat` up into `tensors` at the end.
void cut_at_end(const at::Tensor& flat, const Tensors& tensors, MpiWork& work) {
  work.then([flat, tensors] {
    std::int64_t offset = 0;
    for (const at::Tensor& tensor : tensors) {
      tensor.copy_(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
      offset += tensor.numel();
    }
  });
}

// Contiguous memory with what `tensor` holds, kept as long as `work` is under way.
Bytes sent(const at::Tensor& tensor, MpiWork& work) {
  const at::Tensor ready = tensor.contiguous();
  work.then([ready] {});
  return bytes_of(ready);
}

// Bytes of the rows of a contiguous tensor for each rank; no splits mean equal ones.
std::vector<Bytes> split_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& splits,
                              int size, const char* title, const char* what) {
  require(tensor.dim() > 0, "give it a first dimension: unsqueeze(0)", title, ": ", what,
          " has no dimension that could be split");
  const std::int64_t rows = tensor.size(0);
  std::vector<std::int64_t> counts = splits;
  if (counts.empty()) counts.assign(static_cast<std::size_t>(size), rows / size);
  const bool fits = counts.size() == static_cast<std::size_t>(size) &&
                    std::ranges::all_of(counts, [](std::int64_t n) { return n >= 0; }) &&
                    std::reduce(counts.begin(), counts.end()) == rows;
  require(fits, kBySize, title, ": ", what, " has ", rows, " rows for ", size,
          " ranks, its split sizes are ", at::IntArrayRef(counts),
          ", expected one of 0 or more for each rank and ", rows, " together");
  const Bytes all = bytes_of(tensor);
  const std::int64_t row = rows == 0 ? 0 : all.size / rows;
  std::vector<Bytes> parts;
  std::int64_t offset = 0;
  for (const std::int64_t count : counts) {
    parts.push_back({static_cast<char*>(all.data) + offset, count * row});
    offset += count * row;
  }
  return parts;
}

void check_all_gather(const at::Tensor& output, const at::Tensor& input, int size,
                      const char* title) {
  check_input(input, title);
  check_output(output, title);
  check_slices(output, input, size, title, "the output");
}

void all_gather(const at::Tensor& output, const at::Tensor& input, int size, MpiWork& work) {
  const Bytes in = sent(input, work);
  const Bytes out = bytes_of(landing(output, work));
  const std::vector<std::int64_t> sizes(static_cast<std::size_t>(size), in.size);
  work.start([&](Communicator& ranks) { return ranks.all_gather(in.data, out.data, sizes); });
}

void check_all_gather_list(const Tensors& outputs, const at::Tensor& input, int rank,
                           const char* title) {
  check_input(input, title);
  for (const at::Tensor& output : outputs) {
    check_output(output, title);
    check_same_type(output, input, title);
  }
  check_elements(outputs[static_cast<std::size_t>(rank)], input.numel(), title,
                 "this rank's output");
}

void all_gather_list(const Tensors& outputs, const at::Tensor& input, MpiWork& work) {
  std::vector<std::int64_t> sizes;
  std::int64_t total = 0;
  for (const at::Tensor& output : outputs) {
    sizes.push_back(static_cast<std::int64_t>(output.nbytes()));
    total += output.numel();
  }
  const Bytes in = sent(input, work);
  const at::Tensor landed = at::empty({total}, input.options());
  cut_at_end(landed, outputs, work);
  work.start(
      [&](Communicator& ranks) { return ranks.all_gather(in.data, landed.data_ptr(), sizes); });
}

void check_reduce_scatter(const at::Tensor& output, const at::Tensor& input, int size,
                          const char* title) {
  check_input(input, title);
  check_output(output, title);
  check_slices(input, output, size, title, "the input");
}

// `contribution` holds the slices of all ranks, `counts[r]` elements for rank r.
void reduce_scatter_slices(const at::Tensor& output, const at::Tensor& contribution,
                           const std::vector<std::int64_t>& counts, const Reduction& reduction,
                           MpiWork& work) {
  const at::Tensor landed = reduction.landing(output);
  work.then([contribution] {});
  reduction.deliver(landed, output, work);
  work.start([&](Communicator& ranks) {
    return ranks.reduce_scatter(contribution.data_ptr(), landed.data_ptr(), counts,
                                reduction.element(), reduction.fold());
  });
}

}  // namespace

MpiBackend::MpiBackend(std::shared_ptr<Connection> connection, int rank, int size,
                       std::chrono::milliseconds timeout)
    : Backend(rank, size),
      connection_(std::move(connection)),
      options_(c10::make_intrusive<Options>("mpi", timeout)),
      highest_tag_(connection_->communicator().highest_tag()) {}

// Runs `fill`, which checks the arguments, then starts the parts on the work it is given.
template <typename Fill>
MpiBackend::WorkHandle MpiBackend::start(const char* title, OpType type, Tensors results,
                                         std::chrono::milliseconds timeout, const Fill& fill) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const std::uint64_t number = sequence_number_.load(std::memory_order_relaxed) + 1;
  auto work =
      c10::make_intrusive<MpiWork>(connection_, rank_, type, title, number, std::move(results),
                                   timeout > kNoTimeout ? timeout : options_->timeout);
  try {
    fill(*work);
  } catch (const Error&) {  // wrong arguments, before anything is started
    throw;
  } catch (const c10::Error& failure) {  // given up before, or no memory for a copy
    if (work->has_started()) {
      connection_->progress().abandon(work, message_of(failure));
    }
    throw;
  } catch (const std::exception& failure) {
    connection_->progress().abandon(work, failure.what());
    throw_broken(join_message(title, " number ", number, " could not start: ", failure.what()));
  }
  sequence_number_.store(number, std::memory_order_relaxed);
  connection_->progress().add(work);
  if (coalesced_) coalesced_->push_back(work);
  return work;
}

void MpiBackend::startCoalescing() { coalesced_.emplace(); }

MpiBackend::WorkHandle MpiBackend::endCoalescing() {
  const auto parts = std::exchange(coalesced_, std::nullopt).value_or(std::vector<MpiWorkHandle>{});
  Tensors results;
  for (const MpiWorkHandle& part : parts) {
    const Tensors more = part->result();
    results.insert(results.end(), more.begin(), more.end());
  }
  return start("mpi:coalesced", OpType::COALESCED, results, kNoTimeout, [&](MpiWork& work) {
    work.start([&](Communicator&) { return when_all_ended(parts); });
  });
}

std::int64_t MpiBackend::check_rank(std::int64_t rank, const char* title, const char* what) const {
  require(rank >= 0 && rank < size_, "ranks count within the group", title, ": ", what, " is ",
          rank, ", expected a rank from 0 to ", size_ - 1);
  return rank;
}

int MpiBackend::check_tag(int tag, const char* title) const {
  require(tag >= 0 && tag <= highest_tag_, "choose another tag", title, " was given tag ", tag,
          ", expected one from 0 to ", highest_tag_);
  return tag;
}

MpiBackend::WorkHandle MpiBackend::allreduce(Tensors& tensors,
                                             const c10d::AllreduceOptions& options) {
  const char* const title = "mpi:all_reduce";
  return start(title, OpType::ALLREDUCE, tensors, options.timeout, [&](MpiWork& work) {
    const at::Tensor& tensor = only(tensors, title);
    check_output(tensor, title);
    const Reduction reduction(tensor.scalar_type(), options.reduceOp, size_, title);
    const at::Tensor data = reduction.contribution_in_place(tensor);
    reduction.deliver(data, tensor, work);
    work.start([&](Communicator& ranks) {
      return ranks.all_reduce(data.data_ptr(), data.numel(), reduction.element(), reduction.fold());
    });
  });
}

MpiBackend::WorkHandle MpiBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  const char* const title = "mpi:all_reduce_coalesced";
  return start(title, OpType::ALLREDUCE_COALESCED, tensors, options.timeout, [&](MpiWork& work) {
    require(!tensors.empty(), "give one at least", title, " was given no tensors");
    for (const at::Tensor& tensor : tensors) {
      check_output(tensor, title);
      check_same_type(tensor, tensors.front(), title);
    }
    const Reduction reduction(tensors.front().scalar_type(), options.reduceOp, size_, title);
    const at::Tensor all = joined(tensors);
    const at::Tensor data = reduction.contribution_in_place(all);
    reduction.deliver(data, all, work);
    cut_at_end(all, tensors, work);
    work.start([&](Communicator& ranks) {
      return ranks.all_reduce(data.data_ptr(), data.numel(), reduction.element(), reduction.fold());
    });
  });
}

MpiBackend::WorkHandle MpiBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const char* const title = "mpi:reduce";
  return start(title, OpType::REDUCE, tensors, options.timeout, [&](MpiWork& work) {
    const at::Tensor& tensor = only(tensors, title);
    const auto root = static_cast<int>(check_rank(options.rootRank, title, "the root"));
    check_output(tensor, title);
    const Reduction reduction(tensor.scalar_type(), options.reduceOp, size_, title);
    const bool is_root = rank_ == root;
    const at::Tensor data =
        is_root ? reduction.contribution_in_place(tensor) : reduction.contribution(tensor);
    if (is_root) {
      reduction.deliver(data, tensor, work);
    } else {
      work.then([data] {});
    }
    work.start([&](Communicator& ranks) {
      return ranks.reduce(data.data_ptr(), is_root ? data.data_ptr() : nullptr, data.numel(),
                          reduction.element(), reduction.fold(), root);
    });
  });
}

MpiBackend::WorkHandle MpiBackend::broadcast(Tensors& tensors,
                                             const c10d::BroadcastOptions& options) {
  const char* const title = "mpi:broadcast";
  return start(title, OpType::BROADCAST, tensors, options.timeout, [&](MpiWork& work) {
    const at::Tensor& tensor = only(tensors, title);
    const auto root = static_cast<int>(check_rank(options.rootRank, title, "the root"));
    check_output(tensor, title);
    const Bytes data = rank_ == root ? sent(tensor, work) : bytes_of(landing(tensor, work));
    work.start([&](Communicator& ranks) { return ranks.broadcast(data, root); });
  });
}

MpiBackend::WorkHandle MpiBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& options) {
  const char* const title = "mpi:all_gather";
  const Tensors& output = only(outputs, title, size_);
  return start(title, OpType::ALLGATHER, output, options.timeout, [&](MpiWork& work) {
    const at::Tensor& input = only(inputs, title);
    check_all_gather_list(output, input, rank_, title);
    all_gather_list(output, input, work);
  });
}

MpiBackend::WorkHandle MpiBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                   const c10d::AllgatherOptions& options) {
  const char* const title = "mpi:all_gather";
  return start(title, OpType::_ALLGATHER_BASE, {output}, options.timeout, [&](MpiWork& work) {
    check_all_gather(output, input, size_, title);
    all_gather(output, input, size_, work);
  });
}

MpiBackend::WorkHandle MpiBackend::allgather_coalesced(std::vector<Tensors>& outputs,
                                                       Tensors& inputs,
                                                       const c10d::AllgatherOptions& options) {
  const char* const title = "mpi:all_gather_coalesced";
  require(outputs.size() == static_cast<std::size_t>(size_), kOneForEach, title, " was given ",
          outputs.size(), " lists of outputs for ", size_, " ranks");
  std::vector<Tensors> by_input(inputs.size());
  Tensors all;
  for (const Tensors& of_rank : outputs) {
    require(of_rank.size() == inputs.size(), kOneForEach, title, " was given ", inputs.size(),
            " inputs and a list of ", of_rank.size(), " outputs, expected as many");
    for (std::size_t i = 0; i < inputs.size(); ++i) by_input[i].push_back(of_rank[i]);
    all.insert(all.end(), of_rank.begin(), of_rank.end());
  }
  return start(title, OpType::ALLGATHER_COALESCED, all, options.timeout, [&](MpiWork& work) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      check_all_gather_list(by_input[i], inputs[i], rank_, title);
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) all_gather_list(by_input[i], inputs[i], work);
  });
}

MpiBackend::WorkHandle MpiBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const char* const title = "mpi:all_gather_coalesced";
  return start(title, OpType::COALESCED, outputs, options.timeout, [&](MpiWork& work) {
    require(outputs.size() == inputs.size(), kOneForEach, title, " was given ", inputs.size(),
            " inputs and ", outputs.size(), " outputs, expected as many");
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      check_all_gather(outputs[i], inputs[i], size_, title);
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      all_gather(outputs[i], inputs[i], size_, work);
    }
  });
}

MpiBackend::WorkHandle MpiBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::GatherOptions& options) {
  const char* const title = "mpi:gather";
  const auto root = static_cast<int>(check_rank(options.rootRank, title, "the root"));
  if (rank_ != root) check_none(outputs, title);
  const Tensors output = rank_ == root ? only(outputs, title, size_) : Tensors{};
  return start(title, OpType::GATHER, output, options.timeout, [&](MpiWork& work) {
    const at::Tensor& input = only(inputs, title);
    check_input(input, title);
    at::Tensor landed;
    if (rank_ == root) {
      for (const at::Tensor& part : output) {
        check_output(part, title);
        check_slices(part, input, 1, title, "an output");
      }
      landed = at::empty({input.numel() * size_}, input.options());
      cut_at_end(landed, output, work);
    }
    const Bytes in = sent(input, work);
    work.start([&](Communicator& ranks) {
      return ranks.gather(in, landed.defined() ? landed.data_ptr() : nullptr, root);
    });
  });
}

MpiBackend::WorkHandle MpiBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                           const c10d::ScatterOptions& options) {
  const char* const title = "mpi:scatter";
  return start(title, OpType::SCATTER, outputs, options.timeout, [&](MpiWork& work) {
    const auto root = static_cast<int>(check_rank(options.rootRank, title, "the root"));
    const at::Tensor& output = only(outputs, title);
    check_output(output, title);
    Bytes in;
    if (rank_ == root) {
      for (const at::Tensor& part : only(inputs, title, size_)) {
        check_input(part, title);
        check_slices(part, output, 1, title, "an input");
      }
      in = sent(joined(inputs.front()), work);
    } else {
      check_none(inputs, title);
    }
    const Bytes out = bytes_of(landing(output, work));
    work.start([&](Communicator& ranks) { return ranks.scatter(in.data, out, root); });
  });
}

MpiBackend::WorkHandle MpiBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                  const c10d::ReduceScatterOptions& options) {
  const char* const title = "mpi:reduce_scatter";
  return start(title, OpType::REDUCE_SCATTER, outputs, options.timeout, [&](MpiWork& work) {
    const at::Tensor& output = only(outputs, title);
    const Tensors& parts = only(inputs, title, size_);
    check_output(output, title);
    std::vector<std::int64_t> counts;
    for (const at::Tensor& part : parts) {
      check_input(part, title);
      check_same_type(part, output, title);
      counts.push_back(part.numel());
    }
    check_elements(output, counts[static_cast<std::size_t>(rank_)], title, "the output");
    const Reduction reduction(output.scalar_type(), options.reduceOp, size_, title);
    reduce_scatter_slices(output, reduction.contribution_in_place(joined(parts)), counts, reduction,
                          work);
  });
}

MpiBackend::WorkHandle MpiBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                        const c10d::ReduceScatterOptions& options) {
  Tensors outputs = {output};
  Tensors inputs = {input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

MpiBackend::WorkHandle MpiBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  const char* const title = "mpi:reduce_scatter";
  return start(title, OpType::_REDUCE_SCATTER_BASE, outputs, options.timeout, [&](MpiWork& work) {
    require(outputs.size() == inputs.size(), kOneForEach, title, " was given ", inputs.size(),
            " inputs and ", outputs.size(), " outputs, expected as many");
    std::vector<Reduction> reductions;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      check_reduce_scatter(outputs[i], inputs[i], size_, title);
      reductions.emplace_back(inputs[i].scalar_type(), options.reduceOp, size_, title);
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::vector<std::int64_t> counts(static_cast<std::size_t>(size_), outputs[i].numel());
      reduce_scatter_slices(outputs[i], reductions[i].contribution(inputs[i]), counts,
                            reductions[i], work);
    }
  });
}

MpiBackend::WorkHandle MpiBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                            const c10d::AllToAllOptions& options) {
  const char* const title = "mpi:all_to_all";
  return start(title, OpType::ALLTOALL, outputs, options.timeout, [&](MpiWork& work) {
    const auto ranks_count = static_cast<std::size_t>(size_);
    require(outputs.size() == ranks_count && inputs.size() == ranks_count, kOneForEach, title,
            " was given ", inputs.size(), " inputs and ", outputs.size(), " outputs for ", size_,
            " ranks");
    for (const at::Tensor& input : inputs) check_input(input, title);
    for (const at::Tensor& output : outputs) check_output(output, title);
    std::vector<Bytes> in;
    std::vector<Bytes> out;
    for (const at::Tensor& input : inputs) in.push_back(sent(input, work));
    for (const at::Tensor& output : outputs) out.push_back(bytes_of(landing(output, work)));
    work.start([&](Communicator& ranks) { return ranks.all_to_all(in, out); });
  });
}

MpiBackend::WorkHandle MpiBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                 std::vector<std::int64_t>& output_splits,
                                                 std::vector<std::int64_t>& input_splits,
                                                 const c10d::AllToAllOptions& options) {
  const char* const title = "mpi:all_to_all";
  return start(title, OpType::ALLTOALL_BASE, {output}, options.timeout, [&](MpiWork& work) {
    check_input(input, title);
    check_output(output, title);
    check_same_type(input, output, title);
    const at::Tensor ready = input.contiguous();
    const at::Tensor landed = landing(output, work);
    work.then([ready] {});
    const auto in = split_rows(ready, input_splits, size_, title, "the input");
    const auto out = split_rows(landed, output_splits, size_, title, "the output");
    work.start([&](Communicator& ranks) { return ranks.all_to_all(in, out); });
  });
}

MpiBackend::WorkHandle MpiBackend::send(Tensors& tensors, int to, int tag) {
  const char* const title = "mpi:send";
  return start(title, OpType::SEND, {}, kNoTimeout, [&](MpiWork& work) {
    const at::Tensor& tensor = only(tensors, title);
    check_input(tensor, title);
    check_rank(to, title, "the receiver");
    check_tag(tag, title);
    const Bytes data = sent(tensor, work);
    work.start([&](Communicator& ranks) { return ranks.send(data, to, tag); });
  });
}

MpiBackend::WorkHandle MpiBackend::receive(const char* title, OpType type, Tensors& tensors,
                                           int from, int tag) {
  return start(title, type, tensors, kNoTimeout, [&](MpiWork& work) {
    const at::Tensor& tensor = only(tensors, title);
    check_output(tensor, title);
    check_tag(tag, title);
    const Bytes data = bytes_of(landing(tensor, work));
    work.start([&](Communicator& ranks) { return ranks.receive(data, from, tag); });
  });
}

MpiBackend::WorkHandle MpiBackend::recv(Tensors& tensors, int from, int tag) {
  const char* const title = "mpi:receive";
  check_rank(from, title, "the sender");
  return receive(title, OpType::RECV, tensors, from, tag);
}

MpiBackend::WorkHandle MpiBackend::recvAnysource(Tensors& tensors, int tag) {
  return receive("mpi:receive_any", OpType::RECVANYSOURCE, tensors, kAnyRank, tag);
}

MpiBackend::WorkHandle MpiBackend::barrier(const c10d::BarrierOptions& options) {
  return start("mpi:barrier", OpType::BARRIER, {}, options.timeout, [](MpiWork& work) {
    work.start([](Communicator& ranks) { return ranks.barrier(); });
  });
}

}  // namespace trireme::comm::mpi
