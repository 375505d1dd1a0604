// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/batch.h>

#include <trireme/base/error.h>
#include <trireme/data/detail/dataset_checks.h>

#include <ATen/ops/ones.h>

namespace trireme::data {

const at::Tensor& Batch::operator[](std::string_view name) const {
  return columns[detail::column_index(names, name)];
}

std::int64_t Batch::rows() const { return columns.empty() ? 0 : columns.front().size(0); }

at::Tensor Batch::mask() const {
  at::Tensor mask = at::ones({rows()}, at::kBool);
  mask.narrow(0, valid_rows(), padded_rows).fill_(false);
  return columns.empty() ? mask : mask.to(columns.front().device());
}

Batch Batch::without_padding() const {
  Batch valid{names, {}};
  for (const at::Tensor& column : columns) {
    valid.columns.push_back(column.narrow(0, 0, column.size(0) - padded_rows));
  }
  return valid;
}

}  // namespace trireme::data
