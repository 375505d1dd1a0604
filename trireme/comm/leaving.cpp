// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/leaving.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/base/warning.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/monitor/termination.h>
#include <trireme/comm/world.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

namespace trireme {
namespace {

void check_limit(const char* name, const std::optional<std::chrono::milliseconds>& limit) {
  if (!limit || *limit > std::chrono::milliseconds::zero()) return;
  throw UsageError(join_message("Leaving was given ", name, " of ", limit->count(), " ms"),
                   "give more than 0, or nothing for the default");
}

}  // namespace

void comm::listen_to_requests(const LeaveOptions& options) {
  check_limit("a grace", options.grace);
  check_limit("a running time", options.max_time);
  const Settings settings = Settings::from(Environment::of_process());
  start_leaving({.grace = options.grace.value_or(settings.leave_grace),
                 .max_time = options.max_time ? options.max_time : settings.max_time});
}

void comm::tell_of_leaving(const std::string& reason, const std::filesystem::path& saved) {
  note("asked to leave by ", reason, "; saved ", saved.string(), "; exit code ", kLeaveExitCode,
       ": start the same program again to go on from there");
}

Leaving::Leaving(const comm::Group& group, const LeaveOptions& options)
    : group_(group_or_self(group, "Leaving")), every_(options.every) {
  if (every_ < 1) {
    throw UsageError(join_message("Leaving was told to ask in every ", every_, "-th call"),
                     "give 1 or more");
  }
  comm::listen_to_requests(options);
}

Leaving::~Leaving() { comm::stop_leaving(); }

bool Leaving::is_requested() {
  if (is_requested_) return true;
  if (++calls_ % every_ != 0) return false;
  const at::Tensor asked = at::full({1}, comm::is_asked_to_leave() ? 1 : 0, at::kLong);
  comm::all_reduce(asked, group_, comm::ReduceOp::kMaximum, "leaving");
  is_requested_ = asked.item<std::int64_t>() != 0;
  if (is_requested_) comm::leave_with_others();
  return is_requested_;
}

std::string Leaving::reason() const {
  const std::string own = comm::who_asked_to_leave();
  return own.empty() && is_requested_ ? "another rank" : own;
}

int Leaving::finish(const std::filesystem::path& saved) {
  // The rank that was asked knows why.
  const auto reasons = comm::all_gather_text(comm::who_asked_to_leave(), group_);
  std::string why = "another rank";
  for (std::size_t rank = 0; rank < reasons.size(); ++rank) {
    if (reasons[rank].empty()) continue;
    why = reasons[rank];
    if (reasons.size() > 1) why += join_message(" on rank ", rank);
    break;
  }
  if (group_.rank() == 0) comm::tell_of_leaving(why, saved);
  return kLeaveExitCode;
}

}  // namespace trireme
