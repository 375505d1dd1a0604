// SPDX-License-Identifier: Apache-2.0
#include <python/native/sparse_all_reduce.h>

#include <trireme/base/error.h>
#include <trireme/comm/adapter/pending_operation.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace trireme::python {
namespace {

// Returns the input of each rank, stacked along a new first dimension.
at::Tensor gather(c10d::Backend& backend, at::Tensor input) {
  std::vector<std::int64_t> sizes = input.sizes().vec();
  sizes.insert(sizes.begin(), backend.getSize());
  at::Tensor output = at::empty(sizes, input.options());
  backend._allgather_base(output, input, c10d::AllgatherOptions())->wait();
  return output;
}

// Returns the tensor with `length` entries along `dim`, those behind its own being zeros.
at::Tensor pad(const at::Tensor& tensor, std::int64_t dim, std::int64_t length) {
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = length;
  at::Tensor padded = at::zeros(sizes, tensor.options());
  padded.narrow(dim, 0, tensor.size(dim)).copy_(tensor);
  return padded;
}

}  // namespace

c10::intrusive_ptr<c10d::Work> sparse_all_reduce(c10d::Backend& backend, const at::Tensor& tensor,
                                                 const c10d::AllreduceOptions& options) {
  TORCH_INTERNAL_ASSERT(options.reduceOp.op_ == c10d::ReduceOp::SUM);
  const at::NoGradGuard no_grad;
  const at::Tensor own = tensor.coalesce();
  const at::Tensor counts = gather(backend, at::full({1}, own._nnz(), at::kLong));
  const auto longest = counts.max().item<std::int64_t>();
  const at::Tensor indices = gather(backend, pad(own.indices(), 1, longest));
  const at::Tensor values = gather(backend, pad(own.values(), 0, longest));
  at::Tensor sum;
  for (int rank = 0; rank < backend.getSize(); ++rank) {
    const auto count = counts[rank].item<std::int64_t>();
    const at::Tensor part = at::sparse_coo_tensor(indices[rank].narrow(1, 0, count),
                                                  values[rank].narrow(0, 0, count), tensor.sizes());
    sum = sum.defined() ? sum + part : part;
  }
  tensor.copy_(sum.coalesce());
  comm::Operation operation = {.kind = comm::OperationKind::kAllReduce};
  operation.results = {tensor};
  auto done = c10::make_intrusive<comm::PendingOperation>(std::move(operation), backend.getRank());
  done->complete(nullptr);
  return done;
}

}  // namespace trireme::python
