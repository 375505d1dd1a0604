// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/execution/validate_program.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/module/agreement.h>
#include <trireme/parallel/pipeline/messages/messenger.h>
#include <trireme/schedule/passes.h>
#include <trireme/schedule/verifier/verify.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace trireme::pipeline {

using schedule::Action;
using schedule::ActionKind;
using schedule::item;

namespace {

// Throws for actions without a callback, and for `step` actions before the end of the list.
void check_callbacks(const std::vector<Action>& actions, const Callbacks& callbacks) {
  bool has_stepped = false;
  for (const Action& action : actions) {
    const bool is_given = action.kind == ActionKind::kGather   ? callbacks.gather != nullptr
                          : action.kind == ActionKind::kFree   ? callbacks.free != nullptr
                          : action.kind == ActionKind::kReduce ? callbacks.reduce != nullptr
                          : action.kind == ActionKind::kStep   ? callbacks.step != nullptr
                                                               : true;
    if (!is_given) {
      throw UsageError(join_message("the schedule has ", to_text(action),
                                    ", and nothing is given "
                                    "that does ",
                                    name_of(action.kind)),
                       "set it in ExecutorOptions::callbacks, or leave it out of the schedule");
    }
    if (has_stepped && action.kind != ActionKind::kStep && action.kind != ActionKind::kFree) {
      throw UsageError(join_message("the schedule has ", to_text(action),
                                    " after a step of the "
                                    "same rank, which needs all gradients of the rank"),
                       "put steps at the end of a rank, as with_steps does");
    }
    has_stepped = has_stepped || action.kind == ActionKind::kStep;
  }
}

// Checks everything that needs no other rank, and inserts messages.
Program prepare(Program program, const std::vector<StageCode>& stages, const comm::Group& group,
                const ExecutorOptions& options) {
  schedule::Schedule& plan = program.schedule;
  if (plan.num_ranks() != group.size()) {
    throw UsageError(join_message("the schedule has ", plan.num_ranks(), " ranks, and the group '",
                                  group.name(), "' has ", group.size()),
                     "make the schedule for the ranks of the group");
  }
  if (options.messages.receives_ahead < 0 || options.messages.outstanding.value_or(0) < 0) {
    throw UsageError(
        join_message("messages: ", options.messages.receives_ahead, " receives ahead, ",
                     options.messages.outstanding.value_or(0), " outstanding, expected 0 or more"),
        "correct ExecutorOptions::messages");
  }
  const schedule::Messages messages = messages_of(group, options.device, options.messages);
  if (!schedule::lists_messages(plan)) plan = schedule::with_messages(plan, messages);
  schedule::verify(
      plan, {.transfers = schedule::VerifyOptions::Transfers::kListed, .messages = messages});
  check_program(program);
  check_stages(program, stages, group.rank());
  check_callbacks(item(plan.ranks, group.rank()), options.callbacks);
  return program;
}

// Throws the first error on every rank, if `error` is not empty on one of them.
void throw_of_all(const std::string& error, const comm::Group& group) {
  const std::vector<std::string> all = comm::all_gather_text(error, group);
  const auto found =
      std::ranges::find_if(all, [](const std::string& text) { return !text.empty(); });
  if (found == all.end()) return;
  constexpr std::string_view kHint = "\n  hint: ";  // the format of Error::what()
  const std::size_t end = found->find(kHint);
  throw UsageError(
      join_message("the pipeline cannot be made: rank ", found - all.begin(), ": ",
                   found->substr(0, end)),
      end == std::string::npos ? "look at that rank" : found->substr(end + kHint.size()));
}

}  // namespace

Program validate_program(Program program, const std::vector<StageCode>& stages,
                         const comm::Group& group, const ExecutorOptions& options) {
  std::string error;
  std::string text;
  try {
    program = prepare(std::move(program), stages, group, options);
    text = join_message(describe(program), "receives ahead ", options.messages.receives_ahead,
                        ", outstanding ", options.messages.outstanding.value_or(-1));
  } catch (const std::exception& found) {
    error = message_of(found);
  }
  // Errors are exchanged before programs are compared, so that no rank waits in the comparison for
  // one that has failed.
  throw_of_all(error, group);
  detail::check_same_text("program of the pipeline", text, group);
  return program;
}

}  // namespace trireme::pipeline
