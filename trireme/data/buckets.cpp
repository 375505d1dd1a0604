// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/buckets.h>

#include <trireme/base/error.h>
#include <trireme/data/detail/dataset_checks.h>

#include <cstddef>

namespace trireme::data {
namespace {

std::int64_t length_of(const at::Tensor& sample, const std::string& column,
                       std::int64_t dimension) {
  if (dimension >= -sample.dim() && dimension < sample.dim()) return sample.size(dimension);
  throw UsageError(join_message("lengths: column '", column, "' has samples ", sample.sizes(),
                                ", which have no dimension ", dimension),
                   "dimensions are counted from 0, or from -1 at the end");
}

}  // namespace

std::vector<std::int64_t> lengths(const Dataset& dataset, const std::string& column,
                                  std::int64_t dimension) {
  const std::size_t place = detail::column_index(dataset.columns(), column);
  if (!dataset.stored().empty() && dataset.size() > 0) {
    const at::Tensor first = dataset.stored()[place].select(0, 0);
    return std::vector<std::int64_t>(static_cast<std::size_t>(dataset.size()),
                                     length_of(first, column, dimension));
  }
  return lengths(dataset, [&](const std::vector<at::Tensor>& sample) {
    return length_of(sample.at(place), column, dimension);
  });
}

std::vector<std::int64_t> lengths(
    const Dataset& dataset,
    const std::function<std::int64_t(const std::vector<at::Tensor>& sample)>& length) {
  if (!length) {
    throw UsageError("lengths without a function", "give a function of the sample's tensors");
  }
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < dataset.size(); ++i) all.push_back(length(dataset.get(i)));
  return all;
}

}  // namespace trireme::data
