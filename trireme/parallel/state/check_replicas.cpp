// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/check_replicas.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/base/format_ranks.h>
#include <trireme/base/machine.h>
#include <trireme/base/step_progress.h>
#include <trireme/base/text.h>
#include <trireme/checkpoint/distributed_part.h>
#include <trireme/comm/check_values.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/consensus.h>
#include <trireme/parallel/manual.h>
#include <trireme/parallel/module/local_memory.h>
#include <trireme/parallel/sharded_state.h>
#include <trireme/parallel/state/stage_gatherer.h>
#include <trireme/parallel/zero/shards.h>
#include <trireme/plan/plan.h>
#include <trireme/tensor/distributed_tensor.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

namespace trireme {
namespace {

// What the names of gathered parameters begin with.
constexpr std::string_view kGathered = "gathered parameter ";

// A tensor of this rank that other ranks hold too.
struct Replica {
  std::string name;       // for messages: `parameter fc.weight`
  std::uint64_t set = 0;  // the ranks that hold it, as a number
  at::Tensor tensor;
};

std::uint64_t mixed(std::uint64_t before, std::uint64_t value) {
  const std::uint64_t product = (before ^ value) * 0x9e3779b97f4a7c15U;
  return product ^ (product >> 29U);
}

// Returns a number for a set of ranks, which is the same on all of them.
std::uint64_t number_of(const std::vector<int>& ranks) {
  std::uint64_t number = 1;
  for (const int rank : ranks) number = mixed(number, static_cast<std::uint64_t>(rank) + 1);
  return number;
}

// Lists what this rank holds of a plan, once it has gathered its parameters. Communicates nothing.
class Replicas {
 public:
  Replicas(Parallelized& parallelized, ConstModuleRef module, torch::optim::Optimizer* optimizer)
      : parallelized_(parallelized) {
    const std::vector<Parallelized::Part> parts = parallelized.parts();
    // State that no other rank has need not be joined.
    const bool has_replicas =
        parallelized.plan().shard_ranks > 0 || parallelized.mesh().defined() ||
        std::ranges::any_of(parts, [](const auto& part) { return is_whole(part); });
    checkpoint::State unused;
    const auto saved =
        parts_to_save(parallelized, module, has_replicas ? optimizer : nullptr, unused);
    for (const checkpoint::TensorPart& one : saved) add(one);
    for (const Parallelized::Part& part : parts) {
      if (!part.is_own) continue;
      add_gradient(part);
      add_gathered(part);
    }
  }

  const std::vector<Replica>& all() const { return all_; }

 private:
  static bool is_whole(const Parallelized::Part& part) {
    return part.tensor.is_same(part.parameter);
  }

  void add(const checkpoint::TensorPart& part) {
    if (!part.is_replicated && part.holders.size() < 2) return;
    constexpr std::string_view kPrefix = "optimizer.";
    const bool is_of_optimizer = part.section != "model";
    const std::string name = is_of_optimizer && part.name.starts_with(kPrefix)
                                 ? part.name.substr(kPrefix.size())
                                 : part.name;
    const std::uint64_t set = part.is_replicated ? number_of(all_ranks()) : number_of(part.holders);
    if (!is_of_optimizer) sets_.emplace(part.name, set);
    all_.push_back({.name = (is_of_optimizer ? "optimizer state " : "parameter ") + name,
                    .set = set,
                    .tensor = part.local});
  }

  // The ranks that hold a parameter also hold its gradient after the sum.
  void add_gradient(const Parallelized::Part& part) {
    const auto set = sets_.find(part.name);
    const at::Tensor& gradient = part.tensor.grad();
    if (set == sets_.end() || !gradient.defined() || gradient.layout() != at::kStrided) return;
    const bool is_alike = has_layout(gradient) == has_layout(part.tensor) &&
                          (!has_layout(gradient) || layout_of(gradient) == layout_of(part.tensor));
    if (!is_alike) return;
    all_.push_back({.name = "gradient of " + part.name,
                    .set = set->second,
                    .tensor = detail::memory_of(gradient)});
  }

  // In ZeRO levels 1 and 2 each rank has a copy of the slices of the others.
  void add_gathered(const Parallelized::Part& part) {
    constexpr int kCutLevel = 3;
    if (is_whole(part) || zero_level_of(parallelized_.plan(), part.name) == kCutLevel) return;
    const detail::StageGatherer stages(parallelized_);
    std::vector<int> holders = all_ranks();
    if (has_layout(part.parameter)) {
      checkpoint::RankGrid grid{.axes = parallelized_.plan().mesh,
                                .rank = parallelized_.group().rank()};
      holders = checkpoint::holders_of(part.name, layout_of(part.parameter), grid);
    }
    std::erase_if(holders, [&](int rank) { return !stages.has_own_stages(rank); });
    if (holders.size() < 2) return;
    all_.push_back({.name = join_message(kGathered, part.name),
                    .set = number_of(holders),
                    .tensor = detail::memory_of(part.parameter)});
  }

  std::vector<int> all_ranks() const {
    std::vector<int> ranks(static_cast<std::size_t>(parallelized_.group().size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  Parallelized& parallelized_;
  std::map<std::string, std::uint64_t> sets_;  // of parameters, by name
  std::vector<Replica> all_;
};

// Returns a line with a checksum for each set of ranks that this rank belongs to.
std::string summary_of(const std::vector<Replica>& replicas, std::vector<std::uint64_t>& digests) {
  std::map<std::uint64_t, std::uint64_t> sums;
  for (const Replica& replica : replicas) {
    digests.push_back(static_cast<std::uint64_t>(comm::digest_of_values(replica.tensor)));
    std::uint64_t& sum = sums[replica.set];
    sum = mixed(sum, digests.back());
  }
  TextWriter text;
  for (const auto& [set, sum] : sums) text << set << ' ' << sum << " all\n";
  return text.str();
}

std::string details_of(const std::vector<Replica>& replicas,
                       const std::vector<std::uint64_t>& digests) {
  TextWriter text;
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    text << replicas[i].set << ' ' << digests[i] << ' ' << printable(replicas[i].name) << '\n';
  }
  return text.str();
}

// Ranks by what they have of a tensor: nothing, or a checksum.
using Alike = std::map<std::pair<bool, std::uint64_t>, std::vector<int>>;
// By the name of the tensor, of which there are at least two kinds.
using Differences = std::vector<std::pair<std::string, Alike>>;

Differences differences_of(const std::vector<std::string>& texts) {
  using Named = std::pair<std::uint64_t, std::string>;  // a set and the name of a tensor
  std::map<std::uint64_t, std::vector<int>> members;
  std::map<Named, std::map<int, std::uint64_t>> digests;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto rank = static_cast<int>(i);
    TextReader reader(texts[i]);
    std::uint64_t set = 0;
    std::uint64_t digest = 0;
    std::string name;
    while (reader >> set >> digest && std::getline(reader >> std::ws, name)) {
      std::vector<int>& ranks = members[set];
      if (ranks.empty() || ranks.back() != rank) ranks.push_back(rank);
      digests[{set, name}][rank] = digest;
    }
  }
  Differences different;
  for (const auto& [named, by_rank] : digests) {
    Alike alike;
    for (const int rank : members[named.first]) {
      const auto found = by_rank.find(rank);
      const bool has_it = found != by_rank.end();
      alike[{has_it, has_it ? found->second : 0}].push_back(rank);
    }
    if (alike.size() > 1) different.emplace_back(named.second, std::move(alike));
  }
  return different;
}

// The host of a rank, and its number in the world.
struct Seat {
  std::string host;
  int world_rank = 0;
};

std::vector<Seat> seats_of(const comm::Group& group) {
  const auto own = Environment::of_process().find("RANK").value_or("");
  const int rank = parse_number<int>(own).value_or(group.rank());
  std::vector<Seat> seats;
  for (const std::string& text :
       comm::all_gather_text(join_message(rank, ' ', host_name()), group)) {
    TextReader reader(text);
    Seat& seat = seats.emplace_back();
    reader >> seat.world_rank >> seat.host;
  }
  return seats;
}

std::string describe(const std::vector<int>& ranks, const std::vector<Seat>& seats) {
  std::set<std::string> hosts;
  for (const int rank : ranks) hosts.insert(seats[static_cast<std::size_t>(rank)].host);
  return join_message(format_ranks(ranks), " (on ", list_text(hosts), ")");
}

void report(const detail::ReplicaVerdict& verdict, const std::vector<Seat>& seats) {
  if (verdict.minority.empty()) return report_failure({.is_of_unknown_rank = true});
  const Seat& first = seats[static_cast<std::size_t>(verdict.minority.front())];
  const bool is_one_host = std::ranges::all_of(verdict.minority, [&](int rank) {
    return seats[static_cast<std::size_t>(rank)].host == first.host;
  });
  // Ranks of several hosts at once: no single host is at fault.
  if (!is_one_host) return report_failure({.is_of_unknown_rank = true});
  report_failure({.faulty_rank = first.world_rank});
}

[[noreturn]] void fail(const detail::ReplicaVerdict& verdict, const std::vector<Seat>& seats,
                       std::int64_t step) {
  constexpr std::size_t kShown = 5;
  std::string lines;
  for (std::size_t i = 0; i < std::min(kShown, verdict.differences.size()); ++i)
    lines += "\n    " + verdict.differences[i];
  if (verdict.differences.size() > kShown) lines += "\n    and more";
  const bool is_known = !verdict.minority.empty();
  const std::vector<int>& ranks = is_known ? verdict.minority : verdict.undecided;
  throw TrainingError(
      join_message(
          "after step ", step,
          " the ranks do not hold the same bits where they must: ", describe(ranks, seats),
          is_known ? " in the minority. " : ", of which no majority says who is right. ",
          verdict.differences.size(),
          verdict.differences.size() == 1 ? " tensor differs:" : " tensors differ:", lines),
      is_known
          ? "memory or a processor there may be at fault: test that host, and go on from a state "
            "before this step elsewhere (trireme run --restarts, trireme scheduler "
            "--exclude-faulty). If it comes again at once on sound hosts, look for a step of the "
            "program that depends on the rank"
          : "memory or a processor of one of them may be at fault: test these hosts, and go on "
            "from "
            "a state before this step (trireme run --restarts). With three replicas or more, the "
            "faulty one is known");
}

}  // namespace

namespace detail {

ReplicaVerdict judge_replicas(const std::vector<std::string>& texts) {
  Differences different = differences_of(texts);
  // A wrong slice was sent to other ranks, which are not at fault.
  const auto is_gathered = [](const auto& one) { return one.first.starts_with(kGathered); };
  if (!std::ranges::all_of(different, is_gathered)) std::erase_if(different, is_gathered);
  std::set<int> minority;
  std::set<int> undecided;
  ReplicaVerdict verdict;
  for (const auto& [name, alike] : different) {
    const auto most =
        std::ranges::max_element(alike, {}, [](const auto& one) { return one.second.size(); });
    const bool is_undecided = std::ranges::count_if(alike, [&](const auto& one) {
                                return one.second.size() == most->second.size();
                              }) > 1;
    std::vector<int> others;
    for (const auto& [value, ranks] : alike) {
      if (is_undecided || ranks != most->second)
        others.insert(others.end(), ranks.begin(), ranks.end());
    }
    std::ranges::sort(others);
    (is_undecided ? undecided : minority).insert(others.begin(), others.end());
    verdict.differences.push_back(
        is_undecided ? join_message(name, ": ", format_ranks(others), " differ from each other")
                     : join_message(name, ": ", format_ranks(others),
                                    others.size() == 1 ? " differs from " : " differ from ",
                                    format_ranks(most->second)));
  }
  verdict.minority.assign(minority.begin(), minority.end());
  verdict.undecided.assign(undecided.begin(), undecided.end());
  return verdict;
}

}  // namespace detail

void check_replicas(Parallelized& parallelized, ConstModuleRef module,
                    torch::optim::Optimizer* optimizer, std::int64_t step) {
  const comm::Group& group = parallelized.group();
  if (group.size() == 1) return;
  const at::NoGradGuard no_grad;
  // Before work that may fail on one rank, because the others would wait for it here.
  if (detail::Shards* const shards = detail::shards_of(parallelized)) {
    shards->gather_parameters(/*also_cut=*/false);
  }
  std::optional<Replicas> replicas;
  std::vector<std::uint64_t> digests;
  const comm::Outcomes summaries = comm::run_on_all(group, [&] {
    replicas.emplace(parallelized, module, optimizer);
    return summary_of(replicas->all(), digests);
  });
  summaries.throw_failure("compute the checksums of its tensors");
  if (detail::judge_replicas(summaries.texts).differences.empty()) return;
  const auto verdict =
      detail::judge_replicas(comm::all_gather_text(details_of(replicas->all(), digests), group));
  const std::vector<Seat> seats = seats_of(group);
  report(verdict, seats);
  fail(verdict, seats, step);
}

std::int64_t steps_between_replica_checks() {
  static const std::int64_t steps =
      Settings::from(Environment::of_process()).steps_between_replica_checks;
  return steps;
}

}  // namespace trireme
