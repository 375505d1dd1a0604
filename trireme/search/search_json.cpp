// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/config/configuration.h>
#include <trireme/plan/plan_config.h>
#include <trireme/search/search.h>

#include <nlohmann/json.hpp>

#include <string>

namespace trireme::search {
namespace {

nlohmann::ordered_json json_of(const Candidate& candidate) {
  PlanSettings settings = {.plan = candidate.plan};
  nlohmann::ordered_json json = {
      {"plan_toml", config::Configuration(settings).to_toml()},
      {"rows", candidate.rows},
      {"recomputed", candidate.recomputed},
      {"fits", candidate.fits},
      {"prediction", nlohmann::ordered_json::parse(to_json(candidate.prediction))}};
  for (const CandidateDevices& devices : candidate.devices) {
    json["devices"].push_back({{"kind", devices.kind}, {"memory_limit", devices.memory_limit}});
  }
  return json;
}

}  // namespace

std::string to_json(const SearchResult& result) {
  nlohmann::ordered_json best = nlohmann::ordered_json::array();
  for (const Candidate& candidate : result.best) best.push_back(json_of(candidate));
  nlohmann::ordered_json json = {{"best", std::move(best)}};
  if (result.smallest) json["smallest"] = json_of(*result.smallest);
  if (result.one_device) json["one_device"] = json_of(*result.one_device);
  json["memory_limit"] = result.memory_limit;
  json["lower_bound"] = result.lower_bound;
  json["gap"] = result.gap();
  json["is_complete"] = result.is_complete;
  json["considered"] = result.considered;
  json["too_large"] = result.too_large;
  json["bounded"] = result.bounded;
  json["predicted"] = result.predicted;
  json["invalid"] = result.invalid;
  if (!result.without_tensor.empty()) json["without_tensor"] = result.without_tensor;
  json["refined"] = result.refined;
  json["left"] = result.left;
  json["seconds"] = result.seconds;
  constexpr int kIndent = 2;
  return json.dump(kIndent) + "\n";
}

}  // namespace trireme::search
