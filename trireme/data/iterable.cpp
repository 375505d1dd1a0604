// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/iterable.h>

#include <trireme/base/error.h>
#include <trireme/data/detail/dataset_checks.h>

#include <utility>

namespace trireme::data {
namespace {

class Function final : public IterableDataset {
 public:
  Function(std::vector<std::string> columns, std::function<SampleReader(std::int64_t)> open,
           std::optional<std::int64_t> size)
      : columns_(std::move(columns)), open_(std::move(open)), size_(size) {
    detail::check_names(columns_);
    if (size_) detail::check_size(*size_);
    if (!open_) {
      throw UsageError("an iterable data set without a function",
                       "give a function that starts reading and returns a SampleReader");
    }
  }

  const std::vector<std::string>& columns() const override { return columns_; }
  SampleReader open(std::int64_t pass) const override { return open_(pass); }
  std::optional<std::int64_t> size() const override { return size_; }

 private:
  std::vector<std::string> columns_;
  std::function<SampleReader(std::int64_t)> open_;
  std::optional<std::int64_t> size_;
};

}  // namespace

std::shared_ptr<const IterableDataset> iterable(std::vector<std::string> columns,
                                                std::function<SampleReader(std::int64_t)> open,
                                                std::optional<std::int64_t> size) {
  return std::make_shared<Function>(std::move(columns), std::move(open), size);
}

}  // namespace trireme::data
