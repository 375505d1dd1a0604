// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/retention.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/index.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <set>
#include <utility>

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

struct Written {
  fs::path path;
  std::optional<double> score{};
  std::int64_t at = 0;
  bool stays = false;
};

void read_scores_and_times(std::vector<Written>& all) {
  for (Written& one : all) {
    try {
      const Index index = read_index(one.path);
      one.score = index.score;
      one.at = index.written_at;
    } catch (const CheckpointError&) {  // NOLINT(bugprone-empty-catch): no score and no time
    }
  }
}

void mark_best(std::vector<Written>& all, const Retention& retention) {
  std::vector<Written*> scored;
  for (Written& one : all) {
    if (one.score) scored.push_back(&one);
  }
  // Among equal scores, the newest counts as better.
  std::ranges::reverse(scored);
  std::ranges::stable_sort(scored, {}, [&](const Written* one) {
    return retention.higher_is_better ? -*one->score : *one->score;
  });
  if (static_cast<std::int64_t>(scored.size()) > retention.best) {
    scored.resize(static_cast<std::size_t>(retention.best));
  }
  for (Written* one : scored) one->stays = true;
}

void mark_spans(std::vector<Written>& all, std::chrono::minutes every) {
  constexpr std::int64_t kSeconds = 60;
  std::set<std::int64_t> spans;
  for (Written& one : all) {
    if (one.at > 0 && spans.insert(one.at / kSeconds / every.count()).second) one.stays = true;
  }
}

}  // namespace

void check(const Retention& retention) {
  const std::int64_t least =
      std::min({retention.last, retention.best, std::int64_t{retention.every.count()}});
  if (least >= 0) return;
  throw UsageError(join_message("asked to keep ", least, " checkpoints, expected 0 or more"),
                   "0 keeps all of them");
}

std::vector<fs::path> keep(const fs::path& folder, const std::string& prefix,
                           const Retention& retention, FileLayer& files, bool dry_run) {
  check(retention);
  if (retention.last == 0) return {};
  std::vector<Written> all;
  for (fs::path& path : list_checkpoints(folder, prefix)) all.push_back({.path = std::move(path)});
  const auto count = static_cast<std::int64_t>(all.size());
  for (std::int64_t place = std::max<std::int64_t>(count - retention.last, 0); place < count;
       ++place) {
    all[static_cast<std::size_t>(place)].stays = true;
  }
  if (count > retention.last && (retention.best > 0 || retention.every.count() > 0)) {
    read_scores_and_times(all);
    if (retention.best > 0) mark_best(all, retention);
    if (retention.every.count() > 0) mark_spans(all, retention.every);
  }
  std::vector<fs::path> gone;
  std::exception_ptr failure;  // The first failure; it does not stop the removal of others.
  for (Written& one : all) {
    if (one.stays) continue;
    try {
      if (!dry_run) remove_checkpoint(one.path, files);
      gone.push_back(std::move(one.path));
    } catch (const CheckpointError&) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
  return gone;
}

}  // namespace trireme::checkpoint
