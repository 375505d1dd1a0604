// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/gradients/sparse_sum.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/buckets/divide.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace trireme::detail {
namespace {

// The numbers about a rank's tensor that all ranks exchange first.
struct Header {
  std::int64_t count = kNone;  // number of entries
  std::int64_t sparse_dims = kNone;
  std::int64_t digest = 0;  // hash of the description of sizes, dtype and device
  static constexpr std::int64_t kNone = -1;
};

std::string describe(const at::Tensor& own, at::IntArrayRef sizes,
                     const at::TensorOptions& options) {
  std::string whole = join_message("sizes ", sizes, " of ", options.dtype().toScalarType(), " on ",
                                   c10::DeviceTypeName(options.device().type(), true));
  if (!own.defined()) return whole;
  const bool fits = own.layout() == at::kSparse && own.sizes() == sizes &&
                    own.dtype() == options.dtype() &&
                    own.device().type() == options.device().type();
  if (fits) return whole;
  return join_message(whole, ", but its own tensor has layout ", own.layout(), ", sizes ",
                      own.sizes(), " of ", own.scalar_type(), " on ", own.device());
}

std::vector<Header> gather_headers(const Header& own, const at::Device& device,
                                   const comm::Group& group) {
  const at::Tensor sent =
      at::tensor({own.count, own.sparse_dims, own.digest}, at::kLong).to(device);
  const at::Tensor received = at::empty({group.size(), 3}, sent.options());
  comm::all_gather(received, sent, group, "sizes of sparse gradients");
  const at::Tensor on_host = received.to(at::kCPU);
  const auto* numbers = on_host.const_data_ptr<std::int64_t>();
  std::vector<Header> headers;
  for (int rank = 0; rank < group.size(); ++rank, numbers += 3) {
    headers.push_back({.count = numbers[0], .sparse_dims = numbers[1], .digest = numbers[2]});
  }
  return headers;
}

[[noreturn]] void refuse(const std::string& rank_0, std::size_t rank, const std::string& other) {
  throw UsageError(
      join_message("sum of sparse gradients: rank 0 has ", rank_0, ", rank ", rank, " has ", other),
      "give all ranks the same model, and each rank's gradient its parameter's sizes, "
      "dtype and device");
}

// Returns the number of sparse dimensions, or kNone if no rank has a tensor. Throws on
// disagreement.
std::int64_t check_agreement(const std::vector<Header>& headers, const std::string& own,
                             bool is_own_wrong, const comm::Group& group) {
  const bool is_any_other = std::ranges::any_of(
      headers, [&](const Header& header) { return header.digest != headers.front().digest; });
  if (is_any_other || is_own_wrong) {  // the same on all ranks: equal digests are equally wrong
    const std::vector<std::string> all = comm::all_gather_text(own, group);
    const auto other = std::ranges::find_if(all, [&](const auto& text) { return text != all[0]; });
    const auto rank = other == all.end() ? 0 : other - all.begin();
    refuse(all[0], static_cast<std::size_t>(rank), all[static_cast<std::size_t>(rank)]);
  }
  std::int64_t sparse_dims = Header::kNone;
  std::size_t first = 0;
  for (std::size_t rank = 0; rank < headers.size(); ++rank) {
    if (headers[rank].count == Header::kNone) continue;
    if (sparse_dims == Header::kNone) {
      sparse_dims = headers[rank].sparse_dims;
      first = rank;
    } else if (headers[rank].sparse_dims != sparse_dims) {
      throw UsageError(
          join_message("sum of sparse gradients: rank ", first, " has ", sparse_dims,
                       " sparse dimensions, rank ", rank, " has ", headers[rank].sparse_dims),
          "make the gradient by the same operators on every rank");
    }
  }
  return sparse_dims;
}

// Converts indices [sparse dims, n] to row-major numbers [n].
at::Tensor to_linear(const at::Tensor& indices, at::IntArrayRef sizes) {
  at::Tensor linear = indices[0].clone();
  for (std::int64_t dim = 1; dim < indices.size(0); ++dim) {
    linear.mul_(sizes[static_cast<std::size_t>(dim)]).add_(indices[dim]);
  }
  return linear;
}

// Converts row-major numbers [n] to indices [sparse dims, n].
at::Tensor from_linear(at::Tensor linear, at::IntArrayRef sizes, std::int64_t sparse_dims) {
  std::vector<at::Tensor> indices(static_cast<std::size_t>(sparse_dims));
  for (std::size_t dim = indices.size(); dim-- > 0;) {
    indices[dim] = dim == 0 ? linear : linear.remainder(sizes[dim]);
    linear = linear.floor_divide(sizes[dim]);
  }
  return at::stack(indices);
}

// Sends `own` [n, …], padded to `longest` entries, to all ranks. Returns each rank's entries.
std::vector<at::Tensor> gather(const at::Tensor& own, const std::vector<Header>& headers,
                               std::int64_t longest, const comm::Group& group, const char* label) {
  std::vector<std::int64_t> shape = own.sizes().vec();
  shape[0] = longest;
  const at::Tensor sent = at::zeros(shape, own.options());
  sent.narrow(0, 0, own.size(0)).copy_(own);
  shape[0] = longest * group.size();
  const at::Tensor received = at::empty(shape, own.options());
  comm::all_gather(received, sent, group, label);
  std::vector<at::Tensor> parts;
  for (std::size_t rank = 0; rank < headers.size(); ++rank) {
    const std::int64_t count = std::max<std::int64_t>(0, headers[rank].count);
    parts.push_back(received.narrow(0, static_cast<std::int64_t>(rank) * longest, count));
  }
  return parts;
}

}  // namespace

at::Tensor sum_sparse(const at::Tensor& own, at::IntArrayRef sizes,
                      const at::TensorOptions& options, const comm::Group& group, double divisor) {
  const at::NoGradGuard no_grad;
  const std::string description = describe(own, sizes, options);
  const bool is_wrong = description != describe({}, sizes, options);
  at::Tensor coalesced = own.defined() && !is_wrong ? own.coalesce() : at::Tensor();
  Header header;
  header.digest = static_cast<std::int64_t>(std::hash<std::string>()(description));
  if (coalesced.defined()) {
    header.count = coalesced._nnz();
    header.sparse_dims = coalesced.sparse_dim();
  }
  const std::vector<Header> headers = gather_headers(header, options.device(), group);
  const std::int64_t sparse_dims = check_agreement(headers, description, is_wrong, group);
  const auto divide_sum = [&](const at::Tensor& sum) {
    if (divisor != 1) divide(sum, sum, divisor_for(sum.options(), divisor));
  };
  if (sparse_dims == Header::kNone) return {};
  if (group.size() == 1) {
    divide_sum(coalesced._values());
    return coalesced;
  }

  std::vector<std::int64_t> row = sizes.slice(static_cast<std::size_t>(sparse_dims)).vec();
  row.insert(row.begin(), 0);
  const at::TensorOptions value_options = options.layout(at::kStrided).requires_grad(false);
  const at::TensorOptions index_options = value_options.dtype(at::kLong);
  const std::int64_t longest = std::ranges::max(headers, {}, &Header::count).count;
  if (longest == 0) {
    return at::sparse_coo_tensor(at::empty({sparse_dims, 0}, index_options),
                                 at::empty(row, value_options), sizes,
                                 value_options.layout(at::kSparse), /*is_coalesced=*/true);
  }
  const at::Tensor own_linear =
      coalesced.defined() ? to_linear(coalesced.indices(), sizes) : at::empty({0}, index_options);
  const at::Tensor own_values =
      coalesced.defined() ? coalesced.values() : at::empty(row, value_options);
  const std::vector<at::Tensor> linear =
      gather(own_linear, headers, longest, group, "indices of sparse gradients");
  const std::vector<at::Tensor> values =
      gather(own_values, headers, longest, group, "values of sparse gradients");

  const auto [found, places, counts] =
      at::_unique2(at::cat(linear), /*sorted=*/true, /*return_inverse=*/true);
  row[0] = found.numel();
  // Half precision is added in fp32, as the engines do for dense sums.
  const bool is_half = at::isReducedFloatingType(own_values.scalar_type());
  const at::Tensor sum = at::zeros(row, is_half ? value_options.dtype(at::kFloat) : value_options);
  std::int64_t begin = 0;
  for (const at::Tensor& term : values) {
    // The indices of one rank are unique, so the result does not depend on the order within a call.
    sum.index_add_(0, places.narrow(0, begin, term.size(0)), term.to(sum.scalar_type()));
    begin += term.size(0);
  }
  divide_sum(sum);
  return at::sparse_coo_tensor(from_linear(found, sizes, sparse_dims), sum.to(own_values.dtype()),
                               sizes, value_options.layout(at::kSparse), /*is_coalesced=*/true);
}

}  // namespace trireme::detail
