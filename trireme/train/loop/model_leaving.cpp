// SPDX-License-Identifier: Apache-2.0
// Leaves in time when the process is asked to end, and goes on from there, with as many ranks as
// there are.
#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/base/warning.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/consensus.h>
#include <trireme/comm/leaving.h>
#include <trireme/comm/monitor/termination.h>
#include <trireme/data/data_loader.h>
#include <trireme/train/checkpoints.h>
#include <trireme/train/loop/model_impl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>

namespace trireme {
namespace {

// Returns the first callback of a training that saves checkpoints.
Checkpoint* find_checkpoint(const Callbacks& callbacks) {
  for (Callback& callback : callbacks) {
    if (auto* const checkpoint = dynamic_cast<Checkpoint*>(&callback)) return checkpoint;
  }
  return nullptr;
}

// Returns what asked, as the first rank says that knows it.
std::string reason_on_all(const comm::Group& group) {
  const auto reasons = comm::all_gather_text(comm::who_asked_to_leave(), group);
  for (std::size_t rank = 0; rank < reasons.size(); ++rank) {
    if (reasons[rank].empty()) continue;
    return reasons.size() == 1 ? reasons[rank] : join_message(reasons[rank], " on rank ", rank);
  }
  return "another rank";
}

}  // namespace

// Without checkpoints there would be nothing to go on from: a request then ends the process.
detail::Listening::Listening(bool listens) : listens_(listens) {
  if (listens_) comm::listen_to_requests({});
}

detail::Listening::~Listening() {
  if (listens_) comm::stop_leaving();
}

bool Model::Impl::listens(const Run& run) const {
  return options.at_leaving != AtLeaving::kIgnore && !run.context.is_dry_run &&
         find_checkpoint(run.calls.all()) != nullptr;
}

bool Model::Impl::is_asked_to_leave() const { return is_listening && comm::is_asked_to_leave(); }

// Saves where the training stands, unless that is saved already. Called on all ranks after they
// have agreed to leave.
void Model::Impl::save_to_leave(Run& run) {
  run.calls.each("saving before this run leaves", [&](Callback& callback) {
    auto* const checkpoint = dynamic_cast<Checkpoint*>(&callback);
    if (checkpoint != nullptr) checkpoint->save_now(run.context, position.global_step);
  });
  agree_to_stop(run);  // throws on all ranks if one cannot save
  finish_save();
}

void Model::Impl::leave(const Callbacks& callbacks) const {
  const std::string reason = reason_on_all(options.group);
  const checkpoint::SaveOptions& save = find_checkpoint(callbacks)->options().save;
  const auto path =
      save.folder / checkpoint::checkpoint_name(save.prefix, position.epoch, position.step);
  // The ranks of one process return, because one of them cannot end the others.
  const bool exits = options.at_leaving == AtLeaving::kExit && options.group.engine() != "threads";
  if (options.group.rank() == 0) {
    exits ? comm::tell_of_leaving(reason, path)
          : note("asked to leave by ", reason, "; saved ", path.string());
  }
  if (!exits) return;
  std::cout.flush();
  std::fflush(nullptr);
  std::exit(kLeaveExitCode);  // NOLINT(concurrency-mt-unsafe): ends like main
}

void Model::Impl::resume_if_told(Model& model, const Callbacks& callbacks) {
  if (std::exchange(has_position, true)) return;
  if (!Settings::from(Environment::of_process()).resumes) return;
  const Checkpoint* const checkpoint = find_checkpoint(callbacks);
  const bool is_first = options.group.rank() == 0;
  if (checkpoint == nullptr) {
    if (is_first) {
      warn(
          "this run was told to go on from the newest checkpoint (TRIREME_RESUME), but its "
          "training has no callback Checkpoint that names a folder: it begins anew");
    }
    return;
  }
  // All ranks take what rank 0 sees: a checkpoint may appear meanwhile.
  const checkpoint::SaveOptions& save = checkpoint->options().save;
  std::string newest;
  comm::succeed_together("find the newest checkpoint", options.group, [&] {
    if (!is_first) return;
    if (const auto found = checkpoint::latest(save.folder, save.prefix)) newest = found->string();
  });
  newest = comm::all_gather_text(newest, options.group).front();
  if (newest.empty()) {
    if (is_first) {
      note("there is no checkpoint ", (save.folder / save.prefix).string(),
           "-* to go on from yet: the training begins anew");
    }
    return;
  }
  model.resume(newest);
  comm::note_saved(newest);
  if (is_first) note("goes on from ", newest);
}

// A step of other ranks has another number of rows. Strided shards have read the same rows after as
// many rows, whatever their number.
void Model::Impl::adapt_position(const Run& run) {
  const std::int64_t steps = run.context.steps_in_epoch;
  const std::int64_t shards = data_ranks(options.plan, options.group.size());
  const auto refuse = [&] {
    throw UsageError(join_message("the checkpoint was made after step ", position.step, " of ",
                                  position.steps_in_epoch, " in epoch ", position.epoch,
                                  ", but here an epoch has ", steps, " steps"),
                     "resume with the same data and batch size, or from the end of an epoch");
  };
  if (position.rows == 0 || position.shards == shards || is_sharded_manually ||
      !options.shards_data) {
    refuse();
  }
  const detail::KeptGenerator kept;
  const auto batch = run.training.open(position.epoch - 1)->next();
  const std::int64_t own_rows = batch ? batch->valid_rows() * options.plan.micro_batches : 0;
  // All ranks must take the same step, also if the first batches differ in length.
  const auto rows = detail::all_counts(own_rows, options.group).max().item<std::int64_t>() * shards;
  if (rows == 0) refuse();
  const detail::Position before = position;
  position.step = std::min(position.rows / rows, steps - 1);
  position.steps_in_epoch = steps;
  position.shards = shards;
  position.rows = position.step * rows;
  if (options.group.rank() != 0) return;
  const std::int64_t again = before.rows - position.rows;
  note("goes on in epoch ", position.epoch, " with ", shards, shards == 1 ? " rank" : " ranks",
       " along data instead of ", before.shards, ": after ", position.rows,
       " of the rows, in step ", position.step + 1, " of ", steps,
       again > 0 ? join_message("; ", again, " rows are trained on once more") : std::string());
}

}  // namespace trireme
