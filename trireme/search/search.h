// SPDX-License-Identifier: Apache-2.0
// The automatic planner: searches for the plan that trains a module fastest on a cluster within the
// memory of its devices. Nothing runs; plans are compared by predictions. How it searches:
// docs/design/search.md.
#pragma once

#include <trireme/cluster/cluster.h>
#include <trireme/plan/plan.h>
#include <trireme/predict/predict.h>
#include <trireme/search/constraints.h>
#include <trireme/search/training/training.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::search {

/// Limits of the effort.
struct SearchOptions {
  /// Time of predictions after which the best plan so far is returned. Records of the module and
  /// bounds are not part of it, and a few plans are predicted in any case.
  double seconds = 10;
  /// Number of predictions, in the order of the estimates, without a better plan after which the
  /// search ends. With a very large one it ends only when bounds exclude all other plans.
  std::int64_t patience = 150;
  std::int64_t most_best = 10;  ///< number of plans that SearchResult::best keeps
};

/// The devices of the ranks with one coordinate along `pipe`.
struct CandidateDevices {
  std::string kind;         ///< name of the slowest kind among them
  double memory_limit = 0;  ///< bytes that each may use
};

/// A plan with its prediction.
struct Candidate {
  Plan plan;
  std::int64_t rows = 0;        ///< rows of a micro-batch on a rank along `data`
  std::int64_t recomputed = 0;  ///< number of repeated modules that are recomputed
  predict::Prediction prediction;
  bool fits = false;  ///< within the memory of devices and Constraints::memory_gib
  /// By coordinate along `pipe`; empty if the devices of the cluster are of one kind.
  std::vector<CandidateDevices> devices{};
};

/// The memory of a rank and of its device, in bytes.
struct RankMemory {
  double needed = 0;
  double limit = 0;  ///< what it may use
};

/// Returns the memory of the rank that uses most of what it may.
/// @param memory_limit what a rank may use if all devices are of one kind.
RankMemory fullest_rank(const Candidate& candidate, double memory_limit);

struct SearchResult {
  /// The plans that fit, the fastest first. Empty if none does.
  std::vector<Candidate> best;
  /// If nothing fits: the plan that needs least memory.
  std::optional<Candidate> smallest;
  /// The same training on one device; without a value if there is no valid plan for it.
  std::optional<Candidate> one_device;
  double memory_limit = 0;      ///< bytes that a rank may use, on the smallest device
  double lower_bound = 0;       ///< no plan of the search takes less time, in seconds
  std::int64_t considered = 0;  ///< plans that the constraints allow
  /// Of these: do not fit by their parameters and optimizer alone, or did not with fewer rows.
  std::int64_t too_large = 0;
  std::int64_t bounded = 0;     ///< of these: cannot be faster than the best
  std::int64_t predicted = 0;   ///< of these: predicted
  std::int64_t invalid = 0;     ///< of these: cannot be carried out, such as with too many stages
  std::string first_invalid{};  ///< why the first of them cannot
  /// A size of `tensor` that was left out because operators cannot compute on shards, and why;
  /// empty if there is none.
  std::string without_tensor{};
  std::int64_t refined = 0;  ///< predictions beside these, with some recomputed modules
  std::int64_t left = 0;     ///< of these: neither predicted nor excluded when it ended
  double seconds = 0;        ///< time of the search
  bool is_complete = false;  ///< all plans were predicted or excluded by bounds

  /// Returns the fastest plan. Throws UsageError that says what is missing if none fits.
  const Candidate& fastest() const;
  /// Returns by how much the best plan may be slower than the fastest possible plan of the search,
  /// as a share of its time; 0 if nothing fits.
  double gap() const noexcept;
};

/// Searches for the plan with the shortest step. Deterministic unless it runs out of time. Not
/// collective; blocking, for about SearchOptions::seconds at most, but for the records of the
/// module.
/// @param ranks number of ranks, one for each device of the cluster.
/// Throws UsageError if constraints leave no plan, naming those that contradict each other, for
/// fewer rows than one, and as predict().
SearchResult find_plan(const Training& training, std::int64_t ranks,
                       const cluster::Cluster& cluster, const Constraints& constraints = {},
                       const SearchOptions& options = {});

/// Returns the result as text for people: the plan, where its time and memory go, the other plans,
/// and how certain it is.
std::string to_string(const SearchResult& result);

/// Returns the fastest plan and its prediction in one line, and whether one rank alone would be
/// faster. Throws as SearchResult::fastest().
std::string summary_of(const SearchResult& result);

/// Returns the result as one JSON object. Format: docs/formats/search.md.
std::string to_json(const SearchResult& result);

/// Returns why a plan with further constraints was not chosen, as text: the best such plan beside
/// the chosen one, and where it loses, or what makes it impossible.
/// @param chosen the result of find_plan.
/// @param alternative the result with the further constraints.
/// @param wish the further constraints as the user wrote them.
std::string compare(const SearchResult& chosen, const SearchResult& alternative,
                    const std::string& wish);

}  // namespace trireme::search
