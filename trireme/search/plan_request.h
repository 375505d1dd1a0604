// SPDX-License-Identifier: Apache-2.0
// What `trireme plan` asks a search, of a model or of a program that it starts, as text between the
// two processes. Needs no LibTorch.
#pragma once

#include <trireme/base/config/fields.h>

#include <string>
#include <vector>

namespace trireme::search {

/// A request.
struct PlanRequest {
  std::vector<std::string> plan_settings;  ///< assignments that all plans have in common
  std::vector<std::string> constraints;    ///< what the search may not change
  std::vector<std::string> why_not;        ///< further constraints, each compared with the result
  double seconds = 10;                     ///< time after which the best plan so far is taken
  std::string elements = "eager";  ///< how operators on elements run: `eager`, `fused`, `compiled`
  bool as_json = false;            ///< the answer is JSON

  void fields(config::Fields& fields) {
    fields.add("plan_settings", plan_settings, "settings that all plans have in common");
    fields.add("constraints", constraints, "what the search may not change");
    fields.add("why_not", why_not, "further constraints");
    fields.add("seconds", seconds, "time of predictions");
    fields.add("elements", elements, "how operators on elements run");
    fields.add("as_json", as_json, "the answer is JSON");
  }
};

/// The names of files in a folder by which `trireme plan` and a program talk (TRIREME_PREDICT).
inline constexpr const char* kRequestFile = "search.toml";   ///< a PlanRequest
inline constexpr const char* kAnswerFile = "answer";         ///< PlanAnswer::text
inline constexpr const char* kFoundPlanFile = "found.toml";  ///< the plan; missing if none fits

}  // namespace trireme::search
