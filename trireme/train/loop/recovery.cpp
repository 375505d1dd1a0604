// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/loop/recovery.h>

#include <trireme/base/atomic_file.h>
#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/base/text.h>
#include <trireme/base/warning.h>
#include <trireme/checkpoint/load_plan.h>
#include <trireme/checkpoint/reader.h>
#include <trireme/checkpoint/recovery.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/consensus.h>
#include <trireme/train/loop/model_impl.h>

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <utility>
#include <vector>

namespace trireme::detail {
namespace {

// The share of the time that keeping states may take.
constexpr double kCostShare = 0.005;
// Until the second state the cost is unknown.
constexpr std::int64_t kStepsToSecond = 10;

}  // namespace

std::unique_ptr<Recovery> Recovery::of_process(const comm::Group& group) {
  static std::atomic<int> models = 0;
  const std::string folder = checkpoint::recovery_folder().value_or("").string();
  const std::string rank = Environment::of_process().find("RANK").value_or("0");
  // Rank 0 names the model: by its number in the process, and by the process.
  const std::string own = join_message(models++, "_of_rank_", rank);
  const std::vector<std::string> folders = comm::all_gather_text(folder, group);
  for (std::size_t other = 1; other < folders.size(); ++other) {
    if (folders[other] == folders[0]) continue;
    const auto described = [](const std::string& one) {
      return one.empty() ? std::string("nowhere") : join_message("in ", one);
    };
    throw UsageError(
        join_message("the ranks keep their states in different folders: rank 0 ",
                     described(folders[0]), ", rank ", other, " ", described(folders[other])),
        "give all workers the same --recovery-dir, on a file system that all hosts "
        "share, or none (TRIREME_RECOVERY_FOLDER)");
  }
  if (folder.empty()) return nullptr;
  const std::string name = comm::all_gather_text(own, group).front();
  return std::unique_ptr<Recovery>(new Recovery(group, folder, "model_" + name));
}

Recovery::Recovery(const comm::Group& group, const std::filesystem::path& folder,
                   std::string prefix)
    : group_(group),
      options_{.folder = folder, .prefix = std::move(prefix), .keep = 1},
      interval_(checkpoint::recovery_interval()),
      may_take_(checkpoint::restart_count() > 0) {}

std::optional<std::filesystem::path> Recovery::take_newest(std::int64_t global_step) {
  if (!std::exchange(may_take_, false)) return std::nullopt;
  // Rank 0 decides: a folder of several hosts may not look the same on all of them.
  std::string path;
  comm::succeed_together("find the state that was kept", group_, [&] {
    if (group_.rank() != 0) return;
    const auto newest = checkpoint::latest(options_.folder, options_.prefix);
    if (!newest) return;
    const checkpoint::State state = checkpoint::state_for_rank(checkpoint::Reader(*newest), 0);
    if (number_entry<std::int64_t>(state, "global_step") > global_step) path = newest->string();
  });
  path = comm::all_gather_text(path, group_).front();
  if (path.empty()) return std::nullopt;
  return path;
}

void Recovery::after_step(std::int64_t global_step,
                          const std::function<checkpoint::Content()>& make) {
  if (!is_due(global_step)) return;
  const auto started = Clock::now();
  if (!saver_) {
    saver_ = std::make_unique<checkpoint::AsyncSaver>(
        group_, checkpoint::AsyncOptions{
                    .on_failure = [this](const std::string& reason) { stop_keeping(reason); }});
  }
  // All ranks know then whether the last state was kept.
  saver_->finish();
  if (is_broken_) return;
  const Seconds writing = saver_->seconds();
  saver_->save(options_, make);
  schedule_next(global_step, Clock::now() - started + writing, started);
}

// Rank 0 decides, because the ranks measure different times.
void Recovery::schedule_next(std::int64_t global_step, Seconds cost, Clock::time_point started) {
  std::int64_t steps = kStepsToSecond;
  if (last_time_) {
    const Seconds step = Seconds(started - *last_time_) / static_cast<double>(global_step - last_);
    const Seconds wanted = interval_ ? Seconds(*interval_) : cost / kCostShare;
    constexpr double kMost = 1e9;
    steps = std::llround(std::clamp(std::ceil(wanted / step), 1.0, kMost));
  } else if (interval_) {
    steps = 1;
  }
  const at::Tensor agreed = at::tensor({steps}, at::kLong);
  comm::broadcast(agreed, 0, group_, "recovery");
  last_ = global_step;
  last_time_ = started;
  next_ = global_step + agreed.item<std::int64_t>();
}

void Recovery::stop_keeping(const std::string& reason) {
  is_broken_ = true;
  if (group_.rank() != 0) return;
  warn(
      "the state of the training cannot be kept, and a failure goes back to the last state or "
      "checkpoint before step ",
      next_, ": ", reason);
}

// Rank 0 decides, because the folder may not look the same on all hosts.
bool Recovery::note_loss(std::int64_t global_step) {
  std::string answer;
  if (group_.rank() == 0) {
    const std::filesystem::path file = options_.folder / ("lost_steps_of_" + options_.prefix);
    const int attempt = checkpoint::restart_count();
    std::string noted;
    // A program that has caught the error in this attempt, and other ranks, had other data.
    std::ifstream before(file);
    for (std::string line; std::getline(before, line);) {
      TextReader reader(line);
      int earlier = 0;
      std::int64_t step = 0;
      int ranks = 0;
      reader >> earlier >> step >> ranks;
      if (earlier < attempt && step == global_step && ranks == group_.size()) answer = "again";
      noted += line + '\n';
    }
    noted += join_message(attempt, ' ', global_step, ' ', group_.size(), '\n');
    try {
      write_file(file, noted);
    } catch (const Error& failure) {
      warn("step ", global_step, " may be tried more than once again: ", failure.what());
    }
  }
  return comm::all_gather_text(answer, group_).front() == "again";
}

void Recovery::finish() {
  if (saver_ && !is_broken_) saver_->finish();
}

void Recovery::abandon() noexcept {
  is_broken_ = true;
  saver_.reset();
}

}  // namespace trireme::detail
