// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/pipeline.h>

#include <trireme/base/error.h>
#include <trireme/data/detail/names.h>
#include <trireme/data/detail/recipe.h>
#include <trireme/data/detail/stream.h>

namespace trireme::data {
namespace {

void check_at_least(std::string_view what, std::int64_t value, std::int64_t minimum) {
  if (value >= minimum) return;
  throw UsageError(join_message(what, " is ", value, ", expected at least ", minimum),
                   "give a larger number");
}

}  // namespace

std::int64_t shard_size(std::int64_t samples, const Shard& shard) {
  switch (shard.remainder) {
    case Remainder::kWrap:
      return (samples + shard.count - 1) / shard.count;
    case Remainder::kDrop:
      return samples / shard.count;
    case Remainder::kUneven:
      return (samples - shard.index + shard.count - 1) / shard.count;
  }
  throw InternalError("an unknown kind of remainder",
                      "this is a defect in Trireme; please report it");
}

std::int64_t detail::Recipe::samples_per_pass() const {
  const std::int64_t samples = shard_size(dataset->size(), shard);
  const std::int64_t kept = last == LastBatch::kDrop ? samples / rows * rows : samples;
  if (kept > 0 || (samples == 0 && shard.remainder == Remainder::kUneven)) return kept;
  throw UsageError(
      join_message("not one batch: the batch has ", rows, " rows, but shard ", shard.index, " of ",
                   shard.count, " has ", samples, " of the ", dataset->size(),
                   " samples, and what does not fill a batch or a shard is dropped"),
      "use smaller batches, fewer shards, LastBatch::kKeep, or Remainder::kWrap");
}

std::int64_t detail::Recipe::batches_per_pass() const {
  return (samples_per_pass() + rows - 1) / rows;
}

Pipeline::Pipeline(std::shared_ptr<const Dataset> dataset) {
  if (!dataset || dataset->size() < 1) {
    throw UsageError("a pipeline over a data set without samples",
                     "check where the data set was made");
  }
  detail::Recipe recipe;
  recipe.steps.resize(dataset->columns().size());
  recipe.dataset = std::move(dataset);
  recipe_ = std::make_shared<const detail::Recipe>(std::move(recipe));
}

// Streams share the recipe with the pipeline, so a change makes a new one.
template <typename Change>
Pipeline& Pipeline::edit(const Change& change) {
  auto recipe = std::make_shared<detail::Recipe>(*recipe_);
  change(*recipe);
  recipe_ = std::move(recipe);
  return *this;
}

Pipeline& Pipeline::shuffle(std::uint64_t seed) {
  return edit([&](detail::Recipe& recipe) { recipe.shuffle_seed = seed; });
}

Pipeline& Pipeline::shard(Shard shard) {
  check_at_least("the number of shards", shard.count, 1);
  if (shard.index < 0 || shard.index >= shard.count) {
    throw UsageError(join_message("shard ", shard.index, " of ", shard.count),
                     join_message("shards are numbered from 0 to ", shard.count - 1));
  }
  return edit([&](detail::Recipe& recipe) { recipe.shard = shard; });
}

Pipeline& Pipeline::map(const std::string& column, Transform transform) {
  const std::size_t index = detail::column_index(columns(), column);
  return edit([&](detail::Recipe& recipe) {
    recipe.steps[index].push_back({std::move(transform), ++recipe.num_steps});
  });
}

Pipeline& Pipeline::batch(std::int64_t rows, LastBatch last) {
  check_at_least("the number of rows of a batch", rows, 1);
  return edit([&](detail::Recipe& recipe) {
    recipe.rows = rows;
    recipe.last = last;
  });
}

Pipeline& Pipeline::repeat(std::int64_t times) {
  check_at_least("the number of repetitions", times, 1);
  return edit([&](detail::Recipe& recipe) { recipe.times = times; });
}

Pipeline& Pipeline::prefetch(int batches, int workers) {
  check_at_least("the number of prefetched batches", batches, 0);
  check_at_least("the number of workers", workers, 1);
  return edit([&](detail::Recipe& recipe) {
    recipe.prefetch = batches;
    recipe.workers = workers;
  });
}

Pipeline& Pipeline::seed(std::uint64_t seed) {
  return edit([&](detail::Recipe& recipe) { recipe.seed = seed; });
}

std::int64_t Pipeline::batches() const { return recipe_->batches_per_pass() * recipe_->times; }

std::int64_t Pipeline::samples() const { return recipe_->samples_per_pass() * recipe_->times; }

const std::vector<std::string>& Pipeline::columns() const { return recipe_->dataset->columns(); }

std::unique_ptr<BatchStream> Pipeline::open(std::int64_t epoch, std::int64_t first_batch) const {
  check_at_least("the epoch", epoch, 0);
  const std::int64_t total = batches();
  if (first_batch < 0 || first_batch > total) {
    throw UsageError(
        join_message("the first batch is ", first_batch, ", but an epoch has ", total, " batches"),
        "pass how many batches of this epoch were seen already");
  }
  return detail::open_stream(recipe_, epoch, first_batch);
}

}  // namespace trireme::data
