// SPDX-License-Identifier: Apache-2.0
#include <trireme/search/automatic_plan.h>

#include <trireme/base/atomic_file.h>
#include <trireme/base/config/configuration.h>
#include <trireme/base/error.h>
#include <trireme/base/input_file.h>
#include <trireme/base/warning.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/consensus.h>
#include <trireme/parallel/record/module_record.h>
#include <trireme/plan/check_plan.h>
#include <trireme/plan/plan_config.h>
#include <trireme/report/number.h>
#include <trireme/search/constraints.h>
#include <trireme/version.h>

#include <c10/util/hash.h>

#include <array>
#include <system_error>
#include <utility>

namespace trireme::search {
namespace {

// Raised by changes of the search or of predictions, so that plans are searched for again.
constexpr int kSearchVersion = 1;

// What ranks send to each other, and what a file of the cache holds.
struct StoredPlan {
  AutomaticPlan found;
  std::string file = found.file;
  void fields(config::Fields& fields) {
    fields.add("summary", found.summary, "the plan and its prediction");
    fields.add("rows", found.rows, "rows of a micro-batch on each rank along data");
    fields.add("step_seconds", found.step_seconds, "predicted time of a step");
    fields.add("file", file, "the file in which an earlier run has kept it; empty: it is new");
    fields.add("plan", found.plan, "the plan");
  }
};

std::string to_text(const AutomaticPlan& found) {
  StoredPlan stored = {.found = found};
  return config::Configuration(stored).to_toml();
}

AutomaticPlan from_text(std::string_view text, const std::string& name) {
  StoredPlan stored;
  config::Configuration(stored).read_text(text, name);
  stored.found.file = stored.file;
  return std::move(stored.found);
}

// Operators, their work and memory, as far as they say what a plan costs.
std::string describe(const ModuleRecord& record) {
  std::string text;
  for (const OperatorCall& call : record.calls) {
    text += join_message(call.name, ' ', call.module, ' ', report::shortest(call.work.flops), ' ',
                         report::shortest(call.work.bytes), ' ',
                         report::shortest(call.result_bytes), ' ', call.work.dtype);
    for (const int read : call.reads) text += join_message(' ', read);
    text += '\n';
  }
  for (const ParameterRecord& parameter : record.parameters) {
    text += join_message(parameter.name, ' ', report::shortest(parameter.bytes), ' ',
                         parameter.requires_grad ? "trained" : "fixed", '\n');
  }
  return text;
}

std::string describe(const predict::TrainingOptions& options) {
  return join_message(static_cast<int>(options.optimizer), ' ', options.has_master_weights, ' ',
                      options.has_float32_gradients, ' ',
                      report::shortest(options.optimizer_state_bytes.value_or(-1)), ' ',
                      report::shortest(options.optimizer_kernels), ' ',
                      options.reduces_each_micro_batch, ' ', options.gathers_ahead_in_backward, ' ',
                      options.repeats_whole_regions, ' ', options.allows_tf32, '\n');
}

// The search for one training on the first rank.
class FirstRank {
 public:
  FirstRank(const Training& training, std::int64_t ranks, const AutomaticPlanOptions& options)
      : training_(training), ranks_(ranks), options_(options) {
    for (const std::string& text : training.base.constraints) add_constraint(constraints_, text);
    training_.base.mode = PlanMode::kManual;
    training_.base.constraints.clear();
  }

  AutomaticPlan run() {
    const std::filesystem::path file = cache_file();
    if (auto kept = read(file)) return std::move(*kept);
    const SearchResult result =
        find_plan(training_, ranks_, options_.cluster, constraints_, options_.search);
    const Candidate& fastest = result.fastest();
    AutomaticPlan found = {.plan = fastest.plan,
                           .rows = fastest.rows,
                           .step_seconds = fastest.prediction.step_seconds,
                           .summary = summary_of(result)};
    write(file, found);
    return found;
  }

 private:
  std::filesystem::path cache_file() {
    if (options_.cache_folder.empty()) return {};
    Plan plan = training_.base;
    plan.mesh = {{kDataAxis, ranks_}};
    const cluster::Cluster devices = options_.cluster.with_ranks(ranks_);
    const ModuleRecord record =
        record_module(training_.module, plan, loss_of_rows(training_, training_.rows), &devices);
    const std::string key = join_message(
        TRIREME_VERSION, ' ', kSearchVersion, '\n', ranks_, ' ', training_.rows, ' ',
        static_cast<int>(training_.entry), ' ', training_.transform ? "transformed" : "", '\n',
        to_string(constraints_), '\n', describe(training_.options), cluster::to_toml(devices),
        to_toml(training_.base), describe(record));
    return options_.cache_folder / (c10::sha1(key).str() + ".toml");
  }

  // Somebody may have edited the file.
  void check(const AutomaticPlan& kept) const {
    const Plan& plan = kept.plan;
    check_plan(plan, {.ranks = static_cast<int>(ranks_)});
    const std::int64_t ranks = data_ranks(plan, static_cast<int>(ranks_));
    if (!plan.mesh.empty() && kept.step_seconds > 0 &&
        kept.rows * plan.micro_batches * ranks == training_.rows) {
      return;
    }
    throw ConfigError("it is no plan for the rows of this step", "");
  }

  std::optional<AutomaticPlan> read(const std::filesystem::path& file) const {
    std::error_code ignored;
    if (file.empty() || !std::filesystem::exists(file, ignored)) return {};
    try {
      InputFile input = open_input(file);
      constexpr std::int64_t kMost = 1 << 24;
      const auto text = read_text(input, kMost);
      if (!text) throw ConfigError(input.problem, "");
      AutomaticPlan kept = from_text(*text, file);
      check(kept);
      kept.file = file;
      return kept;
    } catch (const Error& error) {
      warn("a plan that an earlier run has kept cannot be read, and is searched for again: ",
           error.what());
      return {};
    }
  }

  // A folder that cannot be written to only costs the next run its search.
  static void write(const std::filesystem::path& file, const AutomaticPlan& found) {
    if (file.empty()) return;
    std::error_code ignored;
    std::filesystem::create_directories(file.parent_path(), ignored);
    try {
      AtomicFile stored(file);
      stored.write(to_text(found));
      stored.commit();
    } catch (const Error& error) {
      warn("the plan cannot be kept for the next run: ", error.what());
    }
  }

  Training training_;
  std::int64_t ranks_;
  const AutomaticPlanOptions& options_;
  Constraints constraints_;
};

}  // namespace

std::string setting_of_search(const Plan& base) {
  const Plan none;
  const std::array<std::pair<const char*, bool>, 11> settings = {{
      {"mesh", base.mesh != none.mesh},
      {"layouts", base.layouts != none.layouts},
      {"operators", base.operators != none.operators},
      {"stages", base.stages != none.stages},
      {"schedule", base.schedule != none.schedule},
      {"chunks", base.chunks != none.chunks},
      {"recompute", base.recompute != none.recompute},
      {"micro_batches", base.micro_batches != none.micro_batches},
      {"zero_level", base.zero_level != none.zero_level},
      {"activation_bytes", base.activation_bytes != none.activation_bytes},
      {"offload_activations", base.offload_activations != none.offload_activations},
  }};
  for (const auto& [name, is_set] : settings) {
    if (is_set) return name;
  }
  return {};
}

AutomaticPlan find_plan(const Training& training, const comm::Group& group,
                        const AutomaticPlanOptions& options) {
  comm::check_same_text("the settings of an automatic plan", to_toml(training.base), group);
  if (const std::string name = setting_of_search(training.base); !name.empty()) {
    throw UsageError(join_message("the plan is automatic, and sets ", name),
                     "leave it out; what is known of the plan is a constraint, such as tensor=4, "
                     "zero_level=1 or memory_gib=4");
  }
  std::string text;
  comm::succeed_together("find a plan", group, [&] {
    if (group.rank() == 0) text = to_text(FirstRank(training, group.size(), options).run());
  });
  return from_text(comm::all_gather_text(text, group).front(), "the plan of the first rank");
}

}  // namespace trireme::search
