// SPDX-License-Identifier: Apache-2.0
#include <trireme/search/plan_answer.h>

#include <trireme/base/config/configuration.h>
#include <trireme/base/error.h>
#include <trireme/plan/plan_config.h>
#include <trireme/predict/fused_elements.h>
#include <trireme/search/automatic_plan.h>
#include <trireme/search/constraints.h>
#include <trireme/search/search.h>

#include <fstream>
#include <utility>

namespace trireme::search {
namespace {

Plan with_settings(const Plan& base, const std::vector<std::string>& assignments) {
  PlanSettings settings = {.plan = base};
  config::Configuration configuration(settings);
  for (const std::string& assignment : assignments) configuration.set(assignment);
  const Plan& plan = settings.plan;
  if (plan.mode == PlanMode::kAutomatic || !plan.constraints.empty()) {
    throw ConfigError("--plan-set gives mode or constraints, which are for programs",
                      "leave it out; --with gives constraints of the search");
  }
  if (plan.activation_bytes > 0 || plan.offload_activations) {
    throw ConfigError(
        "--plan-set gives activation_bytes or offload_activations, which the search does not "
        "choose",
        "leave it out; --with memory_gib=40 limits the memory of a rank");
  }
  if (const std::string name = setting_of_search(plan); !name.empty()) {
    throw ConfigError(join_message("--plan-set gives ", name, ", which the search finds"),
                      "give a constraint, such as --with tensor=4, --with zero_level=1 or "
                      "--with memory_gib=40");
  }
  return plan;
}

Constraints constraints_of(const std::vector<std::string>& texts) {
  Constraints constraints;
  for (const std::string& text : texts) add_constraint(constraints, text);
  return constraints;
}

// Compares the result with the best plan under a further constraint. Says so if there is none.
template <typename Find>
std::string why_not(const std::string& wish, const SearchResult& result, const Find& find,
                    Constraints constraints) {
  try {
    add_constraint(constraints, wish);
    return compare(result, find(constraints), wish);
  } catch (const Error& error) {  // The constraint contradicts another, or leaves no plan.
    return join_message("why not ", wish, ":\n  ", error.what(), '\n');
  }
}

}  // namespace

PlanAnswer answer(const PlanRequest& request, Training training, std::int64_t ranks,
                  const cluster::Cluster& cluster) {
  const predict::Elements elements = predict::elements_of(request.elements);
  training.transform = [elements](ModuleRecord record) {
    return predict::fuse_elements(std::move(record), elements);
  };
  const SearchOptions options = {.seconds = request.seconds};
  Constraints constraints = constraints_of(training.base.constraints);
  for (const std::string& text : request.constraints) add_constraint(constraints, text);
  training.base.mode = PlanMode::kManual;
  training.base.constraints.clear();
  training.base = with_settings(training.base, request.plan_settings);
  for (const std::string& wish : request.why_not) constraints_of({wish});  // refuses it now
  const SearchResult result = find_plan(training, ranks, cluster, constraints, options);
  PlanAnswer answer = {.text = request.as_json ? to_json(result) : to_string(result)};
  for (const std::string& wish : request.why_not) {
    answer.text += why_not(
        wish, result,
        [&](const Constraints& further) {
          return find_plan(training, ranks, cluster, further, options);
        },
        constraints);
  }
  if (!result.best.empty()) answer.plan = result.fastest().plan;
  return answer;
}

void answer_in(const std::filesystem::path& folder, const Training& training, std::int64_t ranks,
               const cluster::Cluster& cluster) {
  PlanRequest request;
  config::Configuration(request).read_file(folder / kRequestFile);
  const PlanAnswer found = answer(request, training, ranks, cluster);
  std::ofstream(folder / kAnswerFile) << found.text;
  if (!found.plan) return;
  PlanSettings settings = {.plan = *found.plan};
  config::Configuration(settings).save(folder / kFoundPlanFile);
}

}  // namespace trireme::search
