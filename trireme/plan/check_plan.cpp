// SPDX-License-Identifier: Apache-2.0
#include <trireme/plan/check_plan.h>

#include <trireme/base/config/suggestion.h>
#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/schedule/passes.h>
#include <trireme/schedule/schedule_text.h>
#include <trireme/schedule/verifier/verify.h>
#include <trireme/tensor/expert_axis.h>

#include <algorithm>
#include <set>
#include <utility>

namespace trireme {
namespace {

bool has_axis(const Plan& plan, const std::string& name) {
  return std::ranges::find(plan.mesh, name, &MeshAxis::name) != plan.mesh.end();
}

// Collects problems in the order in which a reader of the plan meets them.
class PlanChecker {
 public:
  /// @param plan with all axes, those of devices too.
  PlanChecker(const Plan& plan, const PlanUse& use)
      : plan_(plan), use_(use), ranks_(use.ranks * std::max(use.devices, 1)) {}

  std::vector<PlanProblem> run() {
    check_mode();
    check_mesh();
    for (const ParameterLayout& layout : plan_.layouts) {
      check_placements("layouts", to_string(layout), layout.placements);
    }
    for (const OperatorLayout& layout : plan_.operators) check_operators(layout);
    check_axes();
    check_stages();
    check_recomputation();
    check_numbers();
    check_zero();
    if (shares_work(plan_) && plan_.sync_batch_norm) {
      expect("sync_batch_norm", "true",
             "false where the mesh has other axes than data: batch norm of distributed tensors is "
             "over all ranks that share a batch");
    }
    if (use_.entry == PlanEntry::kParallelize) check_for_parallelize();
    if (use_.entry == PlanEntry::kTrainingStep) check_for_training_step();
    return std::move(problems_);
  }

 private:
  void add(std::string text, std::string hint) {
    problems_.push_back({.text = std::move(text), .hint = std::move(hint)});
  }

  template <typename Value>
  void expect(const std::string& field, const Value& value, const std::string& expected,
              const std::string& hint = "") {
    add(join_message("plan: ", field, " is ", value, ", expected ", expected), hint);
  }

  void check_mode();
  void check_mesh();
  void check_axes();
  void check_placements(const std::string& field, const std::string& text,
                        const AxisPlacements& placements);
  void check_operators(const OperatorLayout& layout);
  void check_stages();
  void check_own_schedule(const schedule::Schedule& own, int last_stage);
  void check_recomputation();
  void check_numbers();
  void check_zero();
  void check_zero_level(const std::string& field, int level);
  void check_for_parallelize();
  void check_for_training_step();

  const Plan& plan_;
  const PlanUse& use_;
  const int ranks_;
  std::vector<PlanProblem> problems_;
};

void PlanChecker::check_mode() {
  if (plan_.mode == PlanMode::kAutomatic) {
    expect("mode", "auto", "a plan that says everything",
           "a Model finds its plan before the first step of a training; elsewhere call "
           "trireme::search::find_plan, and give the plan that it returns");
  } else if (!plan_.constraints.empty()) {
    expect("constraints", plan_.constraints.front(), "none, because its mode is manual",
           "set the mode to automatic (\"auto\"), or leave the constraints out");
  }
}

void PlanChecker::check_mesh() {
  if (plan_.mesh.empty()) return;
  std::int64_t product = 1;
  for (const MeshAxis& axis : plan_.mesh) {
    if (axis.size < 1) {
      return expect("mesh", to_string(plan_.mesh), "sizes of 1 or more",
                    join_message("the sizes must multiply to the number of ranks, which is ",
                                 ranks_, "; start more ranks for a larger mesh"));
    }
    if (axis.name.empty() || std::ranges::count(plan_.mesh, axis.name, &MeshAxis::name) > 1) {
      return expect("mesh", to_string(plan_.mesh), "another name for every axis");
    }
    product *= axis.size;
  }
  if (use_.devices > 0 && stage_ranks(plan_) != use_.devices) {
    return expect("mesh", to_string(plan_.mesh),
                  join_message("the ", use_.devices, " devices of each process along pipe"));
  }
  if (product == ranks_) return;
  if (use_.devices > 0) {
    return expect("mesh", to_string(plan_.mesh),
                  join_message("sizes that multiply to ", ranks_, ", for ", use_.ranks,
                               " processes of ", use_.devices, " devices"));
  }
  expect("mesh", to_string(plan_.mesh),
         ranks_ == 1 ? std::string("sizes of 1, because this process is the only rank")
                     : join_message("sizes that multiply to the ", ranks_, " ranks there are"),
         join_message("change the sizes, or start ", product,
                      " ranks, for example by `trireme run -n ", product, "`"));
}

// Refuses axes that nothing uses: their ranks would each train alone, or all do the same work.
void PlanChecker::check_axes() {
  for (const MeshAxis& axis : plan_.mesh) {
    if (axis.name == kDataAxis || axis.name == kStageAxis || axis.name == kContextAxis) continue;
    const bool is_named = std::ranges::any_of(plan_.layouts, [&](const auto& layout) {
      return std::ranges::any_of(layout.placements,
                                 [&](const auto& other) { return other.first == axis.name; });
    });
    if (is_named) continue;
    const std::string meant =
        config::did_you_mean(axis.name, {kDataAxis, kStageAxis, kContextAxis, kExpertAxis});
    if (axis.size == 1 && meant.empty()) continue;
    if (axis.name == kExpertAxis) {
      add(join_message("plan: mesh is ", to_string(plan_.mesh), ", and no layout names its axis ",
                       kExpertAxis, ", so no parameters are divided along it as experts"),
          "set plan.layouts to trireme::expert_layouts(module), or name the stacked parameters, as "
          "in `*.mixture.input_weight -> Shard(0) on expert`; for a module without experts, put "
          "these ranks along data");
      continue;
    }
    add(join_message("plan: mesh is ", to_string(plan_.mesh), ", and no layout names its axis ",
                     axis.name,
                     "; ranks have different data along `data`, different modules along `pipe`, "
                     "parts of sequences along `context`, experts along `expert`, and parts of "
                     "parameters along axes that layouts name"),
        meant.empty()
            ? join_message("cut parameters along it in plan.layouts; where they are whole along it "
                           "on purpose, say so by {\"*\", {{\"",
                           axis.name, "\", Replicate{}}}}")
            : meant);
  }
}

void PlanChecker::check_placements(const std::string& field, const std::string& text,
                                   const AxisPlacements& placements) {
  for (const auto& [axis, placement] : placements) {
    if (axis == kDataAxis) {
      expect(field, text, "another axis than data: what is cut along that one says zero_level");
    } else if (axis == kStageAxis) {
      expect(field, text, "another axis than pipe: which rank has which module says stages");
    } else if (!has_axis(plan_, axis)) {
      std::vector<std::string> names;
      for (const MeshAxis& each : plan_.mesh) names.push_back(each.name);
      const std::string meant = config::did_you_mean(axis, names);
      expect(field, text,
             plan_.mesh.empty()
                 ? "a mesh that has the axis " + axis
                 : join_message("an axis of the mesh ", to_string(plan_.mesh),
                                meant.empty() ? "" : "; ", meant,
                                meant.empty() ? "" : " Or is the name in the mesh misspelt?"));
    }
    if (placement.is_partial() || placement.is_flat_shard()) {
      expect(field, text, "Shard or Replicate");
    }
  }
}

void PlanChecker::check_operators(const OperatorLayout& layout) {
  const std::string text = to_string(layout);
  if (layout.pattern.empty() || (layout.parts.empty() && layout.result.empty())) {
    expect("operators", "'" + text + "'",
           "a pattern of modules or operators with the parts of its inputs or the placements of "
           "its result",
           "for example blocks.*.mlp gives Shard(1) on tensor");
  }
  if (!shares_work(plan_)) {
    expect("operators", text, "a mesh with other axes than data and pipe, along which they run");
  }
  check_placements("operators", text, layout.result);
  std::set<std::string> axes;
  for (const auto& [axis, placement] : layout.result) {
    if (!axes.insert(axis).second)
      expect("operators", text, "each axis once, not " + axis + " twice");
  }
}

void PlanChecker::check_own_schedule(const schedule::Schedule& own, int last_stage) {
  if (own.num_ranks() != stage_ranks(plan_)) {
    return expect("schedule", join_message("one of ", own.num_ranks(), " ranks"),
                  join_message("one of the ", stage_ranks(plan_), " ranks along pipe"));
  }
  if (plan_.micro_batches == 0) {
    add("a training step cannot have a schedule of its own for any number of micro-batches",
        "set micro_batches to the number that the schedule is for");
  } else if (own.micro_batches != plan_.micro_batches) {
    expect("micro_batches", plan_.micro_batches,
           join_message(own.micro_batches, ", as many as its schedule is for"));
  }
  if (!plan_.stages.empty() && last_stage + 1 != own.num_stages()) {
    expect("stages", join_message(last_stage + 1, " of them"),
           join_message("the ", own.num_stages(), " of its schedule"));
  }
  if (plan_.chunks != 0) {
    expect("chunks", plan_.chunks, "0: its schedule says which rank has what");
  }
  for (const auto& actions : own.ranks) {
    for (const schedule::Action& action : actions) {
      if (schedule::computes(action.kind) || schedule::is_message(action.kind)) continue;
      return expect("schedule", "one with " + schedule::to_text(action),
                    "computation and messages: a training step does the rest itself, as the plan "
                    "says");
    }
  }
  using Transfers = schedule::VerifyOptions::Transfers;
  const bool lists_messages = schedule::lists_messages(own);
  try {
    schedule::verify(own,
                     {.transfers = lists_messages ? Transfers::kListed : Transfers::kImplicit});
  } catch (const UsageError& error) {
    return add(error.what(), "correct the schedule; trireme schedule draws it");
  }
  if (!schedule::keeps_order_of_gradients(own)) {
    expect("schedule", "one that computes weight gradients of a stage in another order",
           "that of micro-batches, in which they are added");
  }
}

// Checks the stages: in the order of execution, each number is that of the previous entry or one
// more.
void PlanChecker::check_stages() {
  int last = 0;
  for (const auto& [path, stage] : plan_.stages) {
    if (stage < last || stage > last + 1) {
      return expect("stages: " + path, stage,
                    join_message(last, " or ", last + 1,
                                 ": stages are named in the order of execution, counted from 0, "
                                 "and none is left out"));
    }
    last = stage;
  }
  if (plan_.chunks < 0) expect("chunks", plan_.chunks, "0 or more");
  try {
    if (const auto own = own_schedule(plan_)) return check_own_schedule(*own, last);
  } catch (const UsageError& error) {
    return add(error.what(), {});
  }
  const int ranks = std::max(stage_ranks(plan_), 1);
  if (!plan_.stages.empty() && (last + 1) % ranks != 0) {
    expect("stages", join_message(last + 1, " of them"),
           join_message("as many for each of the ", ranks, " ranks along pipe"));
  } else if (!plan_.stages.empty() && plan_.chunks > 0 && plan_.chunks * ranks != last + 1) {
    expect("chunks", plan_.chunks,
           join_message("0, or the ", (last + 1) / ranks, " stages that each rank has"));
  }
}

void PlanChecker::check_recomputation() {
  if (std::ranges::find(plan_.recompute, "") != plan_.recompute.end()) {
    expect("recompute", "an empty pattern", "patterns of modules or operators, `*` for everything");
  }
  if (plan_.activation_bytes < 0) expect("activation_bytes", plan_.activation_bytes, "0 or more");
  if (plan_.activation_bytes > 0 && !plan_.recompute.empty()) {
    expect("activation_bytes", plan_.activation_bytes,
           "0 where recompute says what is computed again");
  }
}

void PlanChecker::check_numbers() {
  const bool finds_micro_batches = use_.devices > 0;
  if (plan_.micro_batches < (finds_micro_batches ? 0 : 1)) {
    expect("micro_batches", plan_.micro_batches, finds_micro_batches ? "0 or more" : "1 or more");
  }
  if (plan_.bucket_bytes < 0) expect("bucket_bytes", plan_.bucket_bytes, "0 or more");
  if (plan_.first_bucket_bytes < 1) {
    expect("first_bucket_bytes", plan_.first_bucket_bytes, "1 or more");
  }
  if (!(plan_.gradient_predivide > 0)) {
    expect("gradient_predivide", plan_.gradient_predivide, "a number above 0");
  }
  if (plan_.allreduce_streams < 0 || plan_.allreduce_streams > 16) {
    expect("allreduce_streams", plan_.allreduce_streams, "0 to 16");
  }
}

void PlanChecker::check_zero_level(const std::string& field, int level) {
  if (level < 0 || level > 3) {
    expect(field, level, "0 to 3");
  } else if (level > 0 && !plan_.data_parallel) {
    expect(field, level, "0 where data_parallel is false");
  }
}

void PlanChecker::check_zero() {
  check_zero_level("zero_level", plan_.zero_level);
  for (const auto& [name, level] : plan_.zero_level_of) {
    check_zero_level("zero_level_of " + name, level);
  }
  const int along_data = data_ranks(plan_, ranks_);
  if (plan_.shard_ranks < 0 || (plan_.shard_ranks > 0 && along_data % plan_.shard_ranks != 0)) {
    expect("shard_ranks", plan_.shard_ranks,
           join_message("0, or a divisor of the ", along_data, " ranks",
                        shares_work(plan_) ? " along data" : ""));
  }
  if (plan_.gathered_buckets < 0 || plan_.gathered_buckets == 1) {
    expect("gathered_buckets", plan_.gathered_buckets, "0 for all, or 2 or more");
  }
  if (plan_.offload_optimizer && !cuts_anything(plan_)) {
    add("the plan has offload_optimizer, but no ZeRO level above 0: only optimizers that step "
        "shards "
        "can be offloaded",
        "set plan.zero_level to 1 or more, also for one rank");
  }
}

void PlanChecker::check_for_parallelize() {
  if (const int ranks = data_ranks(plan_, ranks_); !plan_.data_parallel && ranks > 1) {
    add(join_message("the plan is not data parallel, but has ", ranks, " ranks",
                     shares_work(plan_) ? " along data" : ""),
        "set data_parallel, or train with a group of one");
  }
  if (stage_ranks(plan_) > 1 || !plan_.stages.empty()) {
    add(join_message("the plan has ", stage_ranks(plan_), " ranks along pipe and ",
                     plan_.stages.size(), " modules that begin stages"),
        "give it to a trireme::TrainingStep, which runs modules stage by stage; from Python, use "
        "torch.distributed.pipelining over `import trireme.torch`, or find a plan with the "
        "constraint pipe=1");
  }
  if (!plan_.recompute.empty() || plan_.activation_bytes > 0) {
    add("the plan has things computed again in backward",
        "give it to a trireme::TrainingStep, of one stage or more, or call trireme::recompute in "
        "forward (from Python torch.utils.checkpoint with use_reentrant=False)");
  }
  if (plan_.offload_activations) {
    add("the plan has activations offloaded between forward and backward",
        "give it to a trireme::TrainingStep over devices, with several micro-batches; from Python, "
        "run forward within torch.autograd.graph.save_on_cpu()");
  }
}

void PlanChecker::check_for_training_step() {
  for (const MeshAxis& axis : plan_.mesh) {
    const bool is_used = axis.name == kDataAxis || axis.name == kStageAxis ||
                         axis.name == kContextAxis || axis.size == 1;
    if (is_used) continue;
    const bool is_cut = std::ranges::any_of(plan_.layouts, [&](const ParameterLayout& layout) {
      return std::ranges::any_of(layout.placements, [&](const auto& placement) {
        return placement.first == axis.name && placement.second.is_shard();
      });
    });
    if (is_cut) continue;
    add(join_message(
            "a training step cannot have axis ", axis.name, " of ", axis.size,
            " ranks, which is neither pipe nor data nor context, and along which no layout cuts "
            "anything"),
        "cut parameters along it in plan.layouts, or take it out of plan.mesh");
  }
  const bool has_other_axes = std::ranges::any_of(plan_.mesh, [](const MeshAxis& axis) {
    return axis.name != kDataAxis && axis.name != kStageAxis;
  });
  const auto plain = std::ranges::find(plan_.layouts, true, &ParameterLayout::is_plain);
  if (has_other_axes && plain != plan_.layouts.end()) {
    add(join_message("a training step cannot keep ", plain->pattern,
                     " plain: stages run the operators that were recorded, all of them on "
                     "distributed tensors"),
        "leave its parameters out of keep_whole (plan.layouts), where its operators have rules, or "
        "train by parallelize without an axis pipe");
  }
  if (shares_work(plan_) && plan_.activation_bytes > 0) {
    add("a training step cannot have activation_bytes where ranks share the work on a stage: bytes "
        "are counted of whole tensors, and ranks keep parts",
        "name what is computed again in plan.recompute");
  }
  if (plan_.sync_batch_norm) {
    add("a training step cannot have sync_batch_norm",
        "set it to false: batch norm is over a micro-batch");
  }
  if (plan_.offload_activations && !use_.on_accelerators) {
    add("a training step cannot have offload_activations for stages on the processor, whose memory "
        "is the host's",
        "set it to false; recompute and activation_bytes make stages keep less there");
  }
  if (use_.devices == 0) return;
  const char* const use_processes = "start a process for each rank, and leave the devices out";
  if (shares_work(plan_)) {
    add("a training step over the devices of one process cannot have layouts over ranks",
        use_processes);
  }
  if (cuts_parameters(plan_)) {
    add("a training step over the devices of one process cannot have parameters cut over ranks "
        "(ZeRO level 3), which are gathered in the order of one thread",
        "take ZeRO level 2; or start a process for each rank, and leave the devices out");
  }
  if (plan_.micro_batches == 0 && use_.ranks > 1) {
    add("a training step over several processes cannot find the number of micro-batches by "
        "measuring",
        "measure in one process, and set micro_batches to what it finds");
  }
}

}  // namespace

std::vector<PlanProblem> plan_problems(const Plan& plan, const PlanUse& use) {
  if (use.devices == 0) return PlanChecker(plan, use).run();
  const Plan whole = with_pipe_and_data(plan, use);
  return PlanChecker(whole, use).run();
}

void check_plan(const Plan& plan, const PlanUse& use) {
  const std::vector<PlanProblem> problems = plan_problems(plan, use);
  if (problems.empty()) return;
  if (problems.size() == 1) throw UsageError(problems[0].text, problems[0].hint);
  std::string text =
      join_message("the plan cannot be carried out, for ", problems.size(), " reasons:");
  for (const PlanProblem& problem : problems) {
    text += join_message("\n  ", problem.text, problem.hint.empty() ? "" : " (", problem.hint,
                         problem.hint.empty() ? "" : ")");
  }
  throw UsageError(text, "correct all of these, or change the group");
}

bool needs_training_step(const Plan& plan) {
  return has_axis(plan, kStageAxis) || !plan.stages.empty() || !plan.recompute.empty() ||
         plan.activation_bytes > 0 || plan.offload_activations;
}

Plan with_pipe_and_data(Plan plan, const PlanUse& use) {
  if (plan.mesh.empty()) plan.mesh.push_back({kDataAxis, use.ranks});
  if (!has_axis(plan, kStageAxis)) {
    plan.mesh.insert(plan.mesh.begin(), {kStageAxis, std::max(use.devices, 1)});
  }
  if (!has_axis(plan, kDataAxis)) plan.mesh.insert(plan.mesh.begin(), {kDataAxis, 1});
  return plan;
}

}  // namespace trireme
