// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/dataset.h>

#include <trireme/base/error.h>
#include <trireme/data/detail/dataset_checks.h>

namespace trireme::data {
namespace {

// A data set of tensors in memory.
class Tensors final : public Dataset {
 public:
  explicit Tensors(std::vector<std::pair<std::string, at::Tensor>> columns) {
    for (auto& [name, tensor] : columns) {
      if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.is_cpu() ||
          tensor.dim() == 0) {
        throw UsageError(join_message("column '", name, "' is not a dense CPU tensor with rows"),
                         "give a tensor of shape [samples, ...] on the CPU");
      }
      names_.push_back(std::move(name));
      // Resolves lazy conjugation and negation, because samples are read as bytes.
      tensors_.push_back(tensor.detach().resolve_conj().resolve_neg().contiguous());
    }
    detail::check_names(names_);
    for (std::size_t i = 1; i < tensors_.size(); ++i) {
      if (tensors_[i].size(0) == tensors_[0].size(0)) continue;
      throw UsageError(
          join_message("columns of unequal length: '", names_[0], "' has ", tensors_[0].size(0),
                       " rows, '", names_[i], "' has ", tensors_[i].size(0)),
          "every column needs one row per sample");
    }
  }

  std::int64_t size() const override { return tensors_[0].size(0); }
  const std::vector<std::string>& columns() const override { return names_; }
  const std::vector<at::Tensor>& stored() const override { return tensors_; }

  std::vector<at::Tensor> get(std::int64_t index) const override {
    detail::check_index(index, size());
    std::vector<at::Tensor> sample;
    for (const at::Tensor& column : tensors_) sample.push_back(column.select(0, index));
    return sample;
  }

 private:
  std::vector<std::string> names_;
  std::vector<at::Tensor> tensors_;
};

// A data set that computes its samples.
class Generator final : public Dataset {
 public:
  Generator(std::int64_t size, std::vector<std::string> names,
            std::function<std::vector<at::Tensor>(std::int64_t)> sample)
      : size_(size), names_(std::move(names)), sample_(std::move(sample)) {
    detail::check_names(names_);
    detail::check_size(size_);
    if (!sample_)
      throw UsageError("a generator without a function", "give a function of the sample's index");
  }

  std::int64_t size() const override { return size_; }
  const std::vector<std::string>& columns() const override { return names_; }

  std::vector<at::Tensor> get(std::int64_t index) const override {
    detail::check_index(index, size_);
    std::vector<at::Tensor> sample = sample_(index);
    if (sample.size() != names_.size()) {
      throw UsageError(
          join_message("the generator returned ", sample.size(), " tensors for sample ", index,
                       ", expected ", names_.size(), ": ", detail::quoted(names_)),
          "return one tensor for each column");
    }
    return sample;
  }

 private:
  std::int64_t size_;
  std::vector<std::string> names_;
  std::function<std::vector<at::Tensor>(std::int64_t)> sample_;
};

}  // namespace

const std::vector<at::Tensor>& Dataset::stored() const {
  // Returned by reference, so it must outlive the call.
  static const std::vector<at::Tensor> none;
  return none;
}

std::shared_ptr<const Dataset> tensors(std::vector<std::pair<std::string, at::Tensor>> columns) {
  return std::make_shared<Tensors>(std::move(columns));
}

std::shared_ptr<const Dataset> generator(
    std::int64_t size, std::vector<std::string> columns,
    std::function<std::vector<at::Tensor>(std::int64_t)> sample) {
  return std::make_shared<Generator>(size, std::move(columns), std::move(sample));
}

}  // namespace trireme::data
