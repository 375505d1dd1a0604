// SPDX-License-Identifier: Apache-2.0
// Chooses the part of the data that a rank trains on, and checks that ranks have read the right
// rows.
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/comm/collectives.h>
#include <trireme/data/data_loader.h>
#include <trireme/parallel/module/agreement.h>
#include <trireme/train/loop/model_impl.h>

#include <torch/torch.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {
namespace {

constexpr std::int64_t kFirstSteps = 2;            // of an epoch; these are compared
constexpr std::int64_t kStepsBetweenChecks = 256;  // counted over all epochs
constexpr int kSameByMistake = 2;                  // comparisons in a row with equal rows

constexpr auto kWhichPart =
    "give every rank the same data loader without shard(), of which a Model takes its part, or "
    "call "
    "shard() with what trireme::data_part(plan, group) names and the same seed of shuffling on all "
    "ranks";

// Stands for the first row if shard() was called.
constexpr std::string_view kSharded = "sharded";

// Returns a line for each column: name, sizes, dtype and digest. Empty if the batch is all padding.
std::string describe(const data::Batch& batch) {
  if (batch.valid_rows() == 0) return {};
  std::string text;
  for (std::size_t i = 0; i < batch.columns.size(); ++i) {
    const at::Tensor column = batch.columns[i].contiguous();
    text += join_message("    ", batch.names[i], " ", column.sizes(), " ", column.scalar_type(),
                         " with the digest ", detail::digest_of(column), "\n");
  }
  return text;
}

// Returns a description of the first row that training reads, after shuffling and transforms. These
// belong to it, because another seed or vocabulary makes other data of the same files. Empty if the
// row cannot be read; training then reports it. A shuffle buffer is filled once more for this row.
std::string first_row_of(const data::DataLoader& data) {
  const detail::KeptGenerator kept;  // transforms may use it
  try {
    data::DataLoader rows = data;
    const auto batches = rows.batch(1).prefetch(0).open(0);
    const auto batch = batches->next();
    return batch ? describe(*batch) : std::string();
  } catch (const std::exception&) {
    return {};
  }
}

// Returns the first two ranks for which `is_wrong` holds.
template <typename IsWrong>
std::optional<std::pair<std::size_t, std::size_t>> find_two(const std::vector<std::string>& all,
                                                            const IsWrong& is_wrong) {
  for (std::size_t a = 0; a < all.size(); ++a) {
    for (std::size_t b = a + 1; b < all.size(); ++b) {
      if (!all[a].empty() && !all[b].empty() && is_wrong(a, b)) return std::pair(a, b);
    }
  }
  return std::nullopt;
}

std::string without_last_break(std::string lines) {
  if (lines.ends_with('\n')) lines.pop_back();
  return lines;
}

}  // namespace

detail::KeptGenerator::KeptGenerator()
    : generator_(at::globalContext().defaultGenerator(at::kCPU)) {
  const std::lock_guard lock(generator_.mutex());
  state_ = generator_.get_state();
}

detail::KeptGenerator::~KeptGenerator() {
  const std::lock_guard lock(generator_.mutex());
  generator_.set_state(state_);
}

// Shards cover a data set only if all ranks give the same data in the same order. With different
// data or orders, each rank would skip rows that nobody else reads. So the first rows are compared.
data::DataLoader Model::Impl::part_of(const data::DataLoader& data, data::Remainder remainder) {
  if (runner->is_unplanned()) detail::refuse_unplanned();
  load_pending();
  const DataPart part = data_part(options.plan, options.group);
  if (!options.shards_data || part.count == 1) return data;
  const std::vector<std::string> all = comm::all_gather_text(
      data.is_sharded() ? std::string(kSharded) : first_row_of(data), options.group);
  const auto differing =
      find_two(all, [&](std::size_t a, std::size_t b) { return all[a] != all[b]; });
  if (differing) {
    const auto [a, b] = *differing;
    if (all[a] == kSharded || all[b] == kSharded) {
      throw UsageError(
          join_message("shard() was called for the data of rank ", all[a] == kSharded ? a : b,
                       ", and not for that of rank ", all[a] == kSharded ? b : a),
          kWhichPart);
    }
    throw UsageError(
        join_message("ranks gave a model different data. It divides one data set among the ranks, "
                     "but the first row of the epoch is on rank ",
                     a, ":\n", all[a], "  and on rank ", b, ":\n", without_last_break(all[b])),
        "give every rank the same data set with the same seed of shuffling, and draw the random "
        "numbers of transforms from the Random that they are given; where each has a data set of "
        "its own, set ModelOptions::shards_data to false");
  }
  if (data.is_sharded()) return data;
  data::DataLoader own = data;
  own.shard({.index = part.index, .count = part.count, .remainder = remainder});
  return own;
}

// Ranks that work on one part of the data and read different rows would mix two batches. Nothing
// else would show that.
void Model::Impl::check_same_batch(const std::optional<data::Batch>& batch) const {
  const std::string own = batch ? describe(*batch) : std::string("    none\n");
  std::vector<std::string> all;
  for (const comm::Group& group : runner->peers()) {
    for (std::string& text : comm::all_gather_text(own, group)) {
      all.push_back(std::move(text));
    }
  }
  const auto other =
      std::ranges::find_if(all, [&](const std::string& text) { return text != all.front(); });
  if (other == all.end()) return;
  throw UsageError(
      join_message("ranks that work on one part of the data together have read different batches: "
                   "the first of them\n",
                   all.front(), "and number ", other - all.begin(), "\n",
                   without_last_break(*other)),
      kWhichPart);
}

void Model::Impl::note_rows(const StepContext& step, const data::Batch& batch) {
  const bool is_compared = step.step <= kFirstSteps || step.global_step % kStepsBetweenChecks == 0;
  rows_of_step =
      options.group.size() > 1 && is_compared ? std::optional(describe(batch)) : std::nullopt;
}

// Runs after a step that has failed on no rank, and before any rank changes a parameter.
void Model::Impl::check_rows(const StepContext& step) {
  if (!rows_of_step) return;
  const std::string own = std::exchange(rows_of_step, std::nullopt).value();
  const DataPart part = data_part(options.plan, options.group);
  std::vector<std::string> all = comm::all_gather_text(own, options.group);
  const at::Tensor parts = detail::all_counts(part.index, options.group);
  const auto part_of_rank = [&](std::size_t rank) {
    return parts.const_data_ptr<std::int64_t>()[rank];
  };
  const auto where = join_message(" in epoch ", step.epoch, ", step ", step.step);
  const auto differing = find_two(all, [&](std::size_t a, std::size_t b) {
    return part_of_rank(a) == part_of_rank(b) && all[a] != all[b];
  });
  if (differing) {
    const auto [a, b] = *differing;
    throw UsageError(join_message("ranks ", a, " and ", b,
                                  ", which work on one part of the data together, have read "
                                  "different batches",
                                  where, ":\n", all[a], "and\n", without_last_break(all[b])),
                     kWhichPart);
  }
  // In parts that the model makes itself equal rows are allowed, as in data of ones.
  if (!options.shards_data || !is_sharded_manually) return;
  const auto same = find_two(all, [&](std::size_t a, std::size_t b) {
    return part_of_rank(a) != part_of_rank(b) && all[a] == all[b];
  });
  num_same_rows = same ? num_same_rows + 1 : 0;
  // A single match may be chance, for example if a small data set is oversampled.
  if (num_same_rows < kSameByMistake) return;
  throw UsageError(join_message("ranks ", same->first, " and ", same->second,
                                ", which are to train on different parts of the data, have read "
                                "the same rows",
                                where, ":\n", without_last_break(all[same->first])),
                   join_message(kWhichPart,
                                "; where the same rows are meant, set ModelOptions::shards_data to "
                                "false"));
}

}  // namespace trireme
