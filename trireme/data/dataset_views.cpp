// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/dataset_views.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/data/detail/dataset_checks.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <optional>

namespace trireme::data {
namespace {

using DatasetPtr = std::shared_ptr<const Dataset>;

DatasetPtr not_null(DatasetPtr dataset, std::string_view view) {
  if (!dataset) {
    throw UsageError(join_message(view, " of a null data set"),
                     "check where the data set was made");
  }
  return dataset;
}

void check_count(std::string_view view, std::int64_t count) {
  if (count >= 0) return;
  throw UsageError(join_message(view, " of ", count, " samples"), "give 0 or more");
}

// Samples begin to begin + size - 1 of a data set.
class Range final : public Dataset {
 public:
  Range(DatasetPtr dataset, std::int64_t begin, std::int64_t size)
      : dataset_(std::move(dataset)), begin_(begin), size_(size) {
    for (const at::Tensor& column : dataset_->stored())
      stored_.push_back(column.narrow(0, begin_, size_));
  }

  std::int64_t size() const override { return size_; }
  const std::vector<std::string>& columns() const override { return dataset_->columns(); }
  const std::vector<at::Tensor>& stored() const override { return stored_; }

  std::vector<at::Tensor> get(std::int64_t index) const override {
    detail::check_index(index, size_);
    return dataset_->get(begin_ + index);
  }

 private:
  DatasetPtr dataset_;
  std::int64_t begin_;
  std::int64_t size_;
  std::vector<at::Tensor> stored_;
};

// Selected samples of a data set. The caller has checked the indices.
class Subset final : public Dataset {
 public:
  Subset(DatasetPtr dataset, std::vector<std::int64_t> indices)
      : dataset_(std::move(dataset)), indices_(std::move(indices)) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(indices_.size()); }
  const std::vector<std::string>& columns() const override { return dataset_->columns(); }

  std::vector<at::Tensor> get(std::int64_t index) const override {
    detail::check_index(index, size());
    return dataset_->get(indices_[static_cast<std::size_t>(index)]);
  }

 private:
  DatasetPtr dataset_;
  std::vector<std::int64_t> indices_;
};

class Concatenation final : public Dataset {
 public:
  explicit Concatenation(std::vector<DatasetPtr> datasets) : datasets_(std::move(datasets)) {
    if (datasets_.empty())
      throw UsageError("concatenate of no data sets", "give at least one data set");
    for (std::size_t i = 0; i < datasets_.size(); ++i) {
      not_null(datasets_[i], "concatenate");
      check_columns(i);
      ends_.push_back(size() + datasets_[i]->size());
    }
  }

  std::int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  const std::vector<std::string>& columns() const override { return datasets_[0]->columns(); }

  std::vector<at::Tensor> get(std::int64_t index) const override {
    detail::check_index(index, size());
    // The first data set whose end is beyond the index contains the sample.
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), index);
    const Dataset& dataset = *datasets_[static_cast<std::size_t>(end - ends_.begin())];
    return dataset.get(index - (*end - dataset.size()));
  }

 private:
  void check_columns(std::size_t place) const {
    const std::vector<std::string>& expected = columns();
    const std::vector<std::string>& found = datasets_[place]->columns();
    const auto [there, here] = std::ranges::mismatch(expected, found);
    if (there == expected.end() && here == found.end()) return;
    const auto name = [](const auto& column, const std::vector<std::string>& names) {
      return column == names.end() ? std::string("nothing") : "'" + *column + "'";
    };
    throw UsageError(
        join_message("concatenate: data set ", place,
                     " has other columns than data set 0: ", "column ", there - expected.begin(),
                     " is ", name(here, found), ", expected ", name(there, expected)),
        "bring them to the same columns with select_columns and rename_columns");
  }

  std::vector<DatasetPtr> datasets_;
  // By data set: the number of samples up to and including its last one.
  std::vector<std::int64_t> ends_;
};

class Zip final : public Dataset {
 public:
  Zip(DatasetPtr first, DatasetPtr second)
      : first_(std::move(first)), second_(std::move(second)), names_(first_->columns()) {
    if (first_->size() != second_->size()) {
      throw UsageError(join_message("zip of data sets of unequal size: the first has ",
                                    first_->size(), " samples, the second ", second_->size()),
                       "cut the larger one with take");
    }
    names_.insert(names_.end(), second_->columns().begin(), second_->columns().end());
    detail::check_names(names_);
    if (first_->stored().empty() || second_->stored().empty()) return;
    stored_ = first_->stored();
    stored_.insert(stored_.end(), second_->stored().begin(), second_->stored().end());
  }

  std::int64_t size() const override { return first_->size(); }
  const std::vector<std::string>& columns() const override { return names_; }
  const std::vector<at::Tensor>& stored() const override { return stored_; }

  std::vector<at::Tensor> get(std::int64_t index) const override {
    detail::check_index(index, size());
    std::vector<at::Tensor> sample = first_->get(index);
    for (at::Tensor& tensor : second_->get(index)) sample.push_back(std::move(tensor));
    return sample;
  }

 private:
  DatasetPtr first_;
  DatasetPtr second_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> stored_;
};

// Selects and renames columns: column i is column places[i] of the data set, named names[i].
class Columns final : public Dataset {
 public:
  Columns(DatasetPtr dataset, std::vector<std::size_t> places, std::vector<std::string> names)
      : dataset_(std::move(dataset)), places_(std::move(places)), names_(std::move(names)) {
    detail::check_names(names_);
    if (!dataset_->stored().empty()) stored_ = pick(dataset_->stored());
  }

  std::int64_t size() const override { return dataset_->size(); }
  const std::vector<std::string>& columns() const override { return names_; }
  const std::vector<at::Tensor>& stored() const override { return stored_; }

  std::vector<at::Tensor> get(std::int64_t index) const override {
    return pick(dataset_->get(index));
  }

 private:
  std::vector<at::Tensor> pick(const std::vector<at::Tensor>& all) const {
    std::vector<at::Tensor> picked;
    for (const std::size_t place : places_) picked.push_back(all.at(place));
    return picked;
  }

  DatasetPtr dataset_;
  std::vector<std::size_t> places_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> stored_;
};

class Cache final : public Dataset {
 public:
  explicit Cache(DatasetPtr dataset)
      : dataset_(std::move(dataset)), slots_(static_cast<std::size_t>(dataset_->size())) {}

  std::int64_t size() const override { return dataset_->size(); }
  const std::vector<std::string>& columns() const override { return dataset_->columns(); }

  std::vector<at::Tensor> get(std::int64_t index) const override {
    detail::check_index(index, size());
    Slot& slot = slots_[static_cast<std::size_t>(index)];
    std::unique_lock lock(mutex_);
    // Another thread may be loading this sample. Waiting for it avoids loading the sample twice.
    loaded_.wait(lock, [&] { return !slot.is_loading; });
    if (slot.sample) return *slot.sample;
    // Loads without the lock, so that other samples can be loaded at the same time. After an error
    // the slot is free again, and the next waiting thread tries.
    slot.is_loading = true;
    lock.unlock();
    std::optional<std::vector<at::Tensor>> loaded;
    std::vector<at::Tensor> sample;
    std::exception_ptr error;
    try {
      loaded = dataset_->get(index);
      sample = *loaded;
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (!error) slot.sample = std::move(loaded);
    slot.is_loading = false;
    lock.unlock();
    loaded_.notify_all();
    if (error) std::rethrow_exception(error);
    return sample;
  }

 private:
  struct Slot {
    std::optional<std::vector<at::Tensor>> sample;
    bool is_loading = false;  // One thread loads the sample without the lock; others wait.
  };

  DatasetPtr dataset_;
  mutable std::mutex mutex_;  // Guards the slots.
  mutable std::condition_variable loaded_;
  mutable std::vector<Slot> slots_;
};

// Adds the sample number, which the predicate's own error does not contain.
[[noreturn]] void fail_predicate(std::int64_t index, std::string_view what) {
  std::throw_with_nested(
      UsageError(join_message("filter: the predicate threw at sample ", index, ": ", what),
                 "the cause is in the program's own function"));
}

}  // namespace

DatasetPtr take(DatasetPtr dataset, std::int64_t count) {
  dataset = not_null(std::move(dataset), "take");
  check_count("take", count);
  const std::int64_t size = std::min(count, dataset->size());
  return std::make_shared<Range>(std::move(dataset), 0, size);
}

DatasetPtr skip(DatasetPtr dataset, std::int64_t count) {
  dataset = not_null(std::move(dataset), "skip");
  check_count("skip", count);
  const std::int64_t begin = std::min(count, dataset->size());
  const std::int64_t size = dataset->size() - begin;
  return std::make_shared<Range>(std::move(dataset), begin, size);
}

DatasetPtr subset(DatasetPtr dataset, std::vector<std::int64_t> indices) {
  dataset = not_null(std::move(dataset), "subset");
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] >= 0 && indices[i] < dataset->size()) continue;
    throw UsageError(join_message("subset: index ", i, " is ", indices[i],
                                  ", but the data set has ", dataset->size(), " samples"),
                     "samples are numbered from 0");
  }
  return std::make_shared<Subset>(std::move(dataset), std::move(indices));
}

DatasetPtr concatenate(std::vector<DatasetPtr> datasets) {
  return std::make_shared<Concatenation>(std::move(datasets));
}

DatasetPtr zip(DatasetPtr first, DatasetPtr second) {
  return std::make_shared<Zip>(not_null(std::move(first), "zip"),
                               not_null(std::move(second), "zip"));
}

DatasetPtr filter(DatasetPtr dataset,
                  const std::function<bool(const std::vector<at::Tensor>&)>& predicate) {
  dataset = not_null(std::move(dataset), "filter");
  if (!predicate)
    throw UsageError("filter without a predicate", "give a function of the sample's tensors");
  std::vector<std::int64_t> kept;
  for (std::int64_t i = 0; i < dataset->size(); ++i) {
    const std::vector<at::Tensor> sample = dataset->get(i);
    try {
      if (predicate(sample)) kept.push_back(i);
    } catch (const std::exception& error) {
      fail_predicate(i, message_of(error));
    }
  }
  return std::make_shared<Subset>(std::move(dataset), std::move(kept));
}

DatasetPtr select_columns(DatasetPtr dataset, const std::vector<std::string>& names) {
  dataset = not_null(std::move(dataset), "select_columns");
  std::vector<std::size_t> places;
  for (const std::string& name : names)
    places.push_back(detail::column_index(dataset->columns(), name));
  return std::make_shared<Columns>(std::move(dataset), std::move(places), names);
}

DatasetPtr rename_columns(DatasetPtr dataset,
                          const std::vector<std::pair<std::string, std::string>>& names) {
  dataset = not_null(std::move(dataset), "rename_columns");
  std::vector<std::string> present;
  std::vector<std::string> renamed = dataset->columns();
  for (const auto& [from, to] : names) {
    if (std::ranges::find(present, from) != present.end()) {
      throw UsageError(join_message("rename_columns: '", from, "' is renamed twice"),
                       "give each column one new name");
    }
    present.push_back(from);
    renamed[detail::column_index(dataset->columns(), from)] = to;
  }
  std::vector<std::size_t> places(renamed.size());
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = i;
  return std::make_shared<Columns>(std::move(dataset), std::move(places), std::move(renamed));
}

DatasetPtr cache(DatasetPtr dataset) {
  dataset = not_null(std::move(dataset), "cache");
  if (!dataset->stored().empty()) return dataset;
  return std::make_shared<Cache>(std::move(dataset));
}

}  // namespace trireme::data
