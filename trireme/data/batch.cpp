// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/batch.h>

#include <trireme/base/error.h>
#include <trireme/data/detail/names.h>

namespace trireme::data {

const at::Tensor& Batch::operator[](std::string_view name) const {
  return columns[detail::column_index(names, name)];
}

std::int64_t Batch::rows() const { return columns.empty() ? 0 : columns.front().size(0); }

}  // namespace trireme::data
