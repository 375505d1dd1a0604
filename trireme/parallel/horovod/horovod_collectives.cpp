// SPDX-License-Identifier: Apache-2.0
// The world of Horovod's interface, and its collectives.
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/parallel/horovod.h>
#include <trireme/parallel/horovod/calls.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

namespace trireme::hvd {
namespace {

struct Initialized {
  World world;
  int cross_rank = 0;
  int cross_size = 1;
};

std::optional<Initialized>& current() {
  static std::optional<Initialized> initialized;
  return initialized;
}

const Initialized& check_initialized() {
  if (current()) return *current();
  throw UsageError("trireme::hvd is used before hvd::init()", "call it first in the program");
}

// Returns [rows, …]: the tensor, padded with zeros.
at::Tensor padded(const at::Tensor& tensor, std::int64_t rows) {
  if (tensor.size(0) == rows) return tensor.contiguous();
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  sizes[0] = rows;
  const at::Tensor result = at::zeros(sizes, tensor.options());
  result.narrow(0, 0, tensor.size(0)).copy_(tensor);
  return result;
}

at::Tensor with_rows(const at::Tensor& tensor) {
  return tensor.dim() == 0 ? tensor.detach().reshape({1}) : tensor.detach();
}

// Calls `call` with a contiguous copy and copies the result back. The strides of `tensor` may
// differ between ranks.
template <typename Call>
void in_a_copy(const at::Tensor& tensor, const Call& call) {
  const at::NoGradGuard no_grad;
  const at::Tensor copy = tensor.detach().contiguous();
  call(copy);
  tensor.copy_(copy);
}

// Describes a tensor except for its number of rows: `Float [*, 3, 4]`.
std::string kind_of(const at::Tensor& tensor) {
  TextWriter text;
  text << tensor.scalar_type() << " [*";
  for (std::int64_t dim = 1; dim < tensor.dim(); ++dim) text << ", " << tensor.size(dim);
  text << "]";
  return text.str();
}

// Gathers the numbers of all ranks, [ranks, count].
at::Tensor gather_numbers(const std::vector<std::int64_t>& numbers, const comm::Group& group) {
  const auto count = static_cast<std::int64_t>(numbers.size());
  const at::Tensor own = at::empty({count}, at::kLong);
  std::copy(numbers.begin(), numbers.end(), own.mutable_data_ptr<std::int64_t>());
  const at::Tensor all = at::empty({group.size(), count}, at::kLong);
  comm::all_gather(all, own, group);
  return all;
}

detail::Mistake mistake_of_splits(const at::Tensor& tensor, const std::vector<std::int64_t>& splits,
                                  int ranks) {
  const std::int64_t rows = tensor.size(0);
  if (splits.empty()) {
    if (rows % ranks == 0) return {};
    return {join_message(rows, " rows cannot be cut into ", ranks, " equal parts"),
            "give splits: how many rows go to each rank"};
  }
  const bool fits = static_cast<int>(splits.size()) == ranks &&
                    std::ranges::all_of(splits, [](std::int64_t part) { return part >= 0; }) &&
                    std::accumulate(splits.begin(), splits.end(), std::int64_t{0}) == rows;
  if (fits) return {};
  return {join_message("splits are ", at::IntArrayRef(splits), " for ", rows, " rows and ", ranks,
                       " ranks"),
          "give one number for each rank, 0 or more, which sum to the rows"};
}

}  // namespace

void init(const InitOptions& options) {
  World found = trireme::init(options);  // throws if an existing world has other options
  if (current()) return;
  Initialized initialized{.world = std::move(found)};
  const World& world = initialized.world;
  const at::Tensor local_ranks = gather_numbers({world.local_rank}, world.group);
  const auto* numbers = local_ranks.const_data_ptr<std::int64_t>();
  // As in Horovod: the number of ranks before this one with the same local rank on their hosts.
  initialized.cross_rank =
      static_cast<int>(std::count(numbers, numbers + world.rank, world.local_rank));
  initialized.cross_size =
      static_cast<int>(std::count(numbers, numbers + world.size, world.local_rank));
  current() = std::move(initialized);
}

void shutdown() { current().reset(); }
bool is_initialized() noexcept { return current().has_value(); }
const World& world() { return check_initialized().world; }
int rank() { return world().rank; }
int size() { return world().size; }
int local_rank() { return world().local_rank; }
int local_size() { return world().local_size; }
int cross_rank() { return check_initialized().cross_rank; }
int cross_size() { return check_initialized().cross_size; }

void allreduce_(const at::Tensor& tensor, Op op, const comm::Group& process_set) {
  if (!tensor.is_contiguous()) {
    return in_a_copy(tensor, [&](const at::Tensor& copy) { allreduce_(copy, op, process_set); });
  }
  if (op != Average) return comm::all_reduce(tensor, process_set, op);
  if (!at::isFloatingType(tensor.scalar_type()) && !tensor.is_complex()) {
    throw UsageError(join_message("allreduce was asked for the average of ", tensor.scalar_type()),
                     "take hvd::Sum and divide as you like, or a floating dtype");
  }
  const at::NoGradGuard no_grad;
  if (tensor.scalar_type() == at::kHalf) {  // the sum may overflow even if the average does not
    const at::Tensor wide = tensor.detach().to(at::kFloat);
    allreduce_(wide, op, process_set);
    tensor.copy_(wide);
    return;
  }
  comm::all_reduce(tensor, process_set, Sum);
  // Divide by a tensor: CUDA multiplies by the reciprocal of a number, which rounds differently.
  tensor.div_(at::full({}, process_set.size(), tensor.options().requires_grad(false)));
}

at::Tensor allreduce(const at::Tensor& tensor, Op op, const comm::Group& process_set) {
  at::Tensor result = tensor.detach().clone(at::MemoryFormat::Contiguous);
  allreduce_(result, op, process_set);
  return result;
}

at::Tensor allgather(const at::Tensor& tensor, const comm::Group& process_set) {
  const at::NoGradGuard no_grad;
  const at::Tensor own = with_rows(tensor);
  detail::check_same_call("allgather", kind_of(own), {}, process_set);
  const at::Tensor rows = gather_numbers({own.size(0)}, process_set);
  // The collective needs equal sizes, so rows are padded to the most that any rank has.
  const auto most = rows.max().item<std::int64_t>();
  std::vector<std::int64_t> sizes = own.sizes().vec();
  sizes[0] = most * process_set.size();
  const at::Tensor all = at::empty(sizes, own.options());
  comm::all_gather(all, padded(own, most), process_set);
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < process_set.size(); ++rank) {
    parts.push_back(all.narrow(0, rank * most, rows[rank].item<std::int64_t>()));
  }
  return at::cat(parts);
}

void broadcast_(const at::Tensor& tensor, int root_rank, const comm::Group& process_set) {
  if (!tensor.is_contiguous()) {
    return in_a_copy(tensor,
                     [&](const at::Tensor& copy) { broadcast_(copy, root_rank, process_set); });
  }
  comm::broadcast(tensor, root_rank, process_set);
}

at::Tensor broadcast(const at::Tensor& tensor, int root_rank, const comm::Group& process_set) {
  at::Tensor result = tensor.detach().clone(at::MemoryFormat::Contiguous);
  broadcast_(result, root_rank, process_set);
  return result;
}

std::pair<at::Tensor, std::vector<std::int64_t>> alltoall(const at::Tensor& tensor,
                                                          const std::vector<std::int64_t>& splits,
                                                          const comm::Group& process_set) {
  const at::NoGradGuard no_grad;
  const at::Tensor own = with_rows(tensor);
  const int ranks = process_set.size();
  detail::check_same_call("alltoall", kind_of(own), mistake_of_splits(own, splits, ranks),
                          process_set);
  std::vector<std::int64_t> parts = splits;
  if (parts.empty()) parts.assign(static_cast<std::size_t>(ranks), own.size(0) / ranks);
  const at::Tensor all_splits = gather_numbers(parts, process_set);  // [sender, receiver]
  const auto most = all_splits.max().item<std::int64_t>();

  std::vector<at::Tensor> outgoing;
  for (const at::Tensor& part : own.split_with_sizes(parts)) outgoing.push_back(padded(part, most));
  const at::Tensor input = at::cat(outgoing);
  const at::Tensor output = at::empty_like(input);
  comm::all_to_all(output, input, process_set);

  std::vector<at::Tensor> received;
  std::vector<std::int64_t> received_splits;
  for (int rank = 0; rank < ranks; ++rank) {
    received_splits.push_back(all_splits[rank][process_set.rank()].item<std::int64_t>());
    received.push_back(output.narrow(0, rank * most, received_splits.back()));
  }
  return {at::cat(received), received_splits};
}

std::string broadcast_object(const std::string& text, int root_rank,
                             const comm::Group& process_set) {
  const at::Tensor length = at::full({1}, static_cast<std::int64_t>(text.size()), at::kLong);
  comm::broadcast(length, root_rank, process_set);
  const at::Tensor bytes = at::zeros({length.item<std::int64_t>()}, at::kByte);
  if (process_set.rank() == root_rank && !text.empty()) {
    std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  }
  comm::broadcast(bytes, root_rank, process_set);
  return {static_cast<const char*>(bytes.const_data_ptr()),
          static_cast<std::size_t>(bytes.numel())};
}

std::vector<std::string> allgather_object(const std::string& text, const comm::Group& process_set) {
  return comm::all_gather_text(text, process_set);
}

void barrier(const comm::Group& process_set) { comm::barrier(process_set); }

}  // namespace trireme::hvd
