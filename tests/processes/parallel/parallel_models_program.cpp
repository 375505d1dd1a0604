// SPDX-License-Identifier: Apache-2.0
// Ranks of one run train small models in parallel and compare every parameter and buffer, bit by
// bit, with one process that uses the same tree of sums; where the trees agree, that process is
// compared with a plain LibTorch loop too.
//
//   parallel_models_program fast    a few cases
//   parallel_models_program grid    every model, number of micro-batches, optimizer, ZeRO level and
//   size
//                                   of buckets
//   parallel_models_program reverse a few cases against a process that adds the ranks the other way
//                                   round: must fail from three ranks on
#include <trireme/comm/collectives.h>
#include <trireme/comm/world.h>

#include <tests/processes/parallel/training.h>
#include <tests/zero_levels.h>

#include <cstdint>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace trireme::test {
namespace {

struct Case {
  Subject subject;
  Variant variant;
};

// Each model with each size of buckets, and ZeRO levels in turn.
std::vector<Case> few_cases() {
  const std::vector<Case> kinds = {
      {{.optimizer = "adam", .micro_batches = 2}, {.bucket_bytes = 1}},
      {{.optimizer = "adam", .micro_batches = 2}, {.bucket_bytes = 4096, .is_delayed = true}},
      {{.optimizer = "momentum", .micro_batches = 1}, {.bucket_bytes = 1 << 20}}};
  std::vector<Case> all;
  for (std::size_t model = 0; model < kSmallModels.size(); ++model) {
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
      all.push_back(kinds[kind]);
      all.back().subject.model = kSmallModels[model];
      all.back().variant.zero_level = static_cast<int>(model + kind) % (kHighestZeroLevel + 1);
    }
  }
  return all;
}

// Optimizers treat each element alone: from five ranks on, which take longest, each combination of
// the rest has one of them.
std::vector<Case> grid(int ranks) {
  const std::vector<std::string> optimizers = {"sgd", "momentum", "adam"};
  const std::vector<std::int64_t> bucket_bytes = {1, 4096, 1 << 20};
  std::vector<Case> all;
  std::size_t turn = 0;
  for (const std::string& model : kSmallModels) {
    for (const std::int64_t micro_batches : {1, 2, 3}) {
      for (int zero_level = 0; zero_level <= kHighestZeroLevel; ++zero_level) {
        ++turn;
        for (std::size_t size = 0; size < bucket_bytes.size(); ++size) {
          for (std::size_t which = 0; which < optimizers.size(); ++which) {
            if (ranks > 4 && (turn + size) % optimizers.size() != which) continue;
            all.push_back({{model, optimizers[which], micro_batches},
                           {.zero_level = zero_level,
                            .bucket_bytes = bucket_bytes[size],
                            .is_delayed = bucket_bytes[size] == 4096}});
          }
        }
      }
    }
  }
  return all;
}

// Counts and shows what is not as it should be.
class Failures {
 public:
  explicit Failures(int rank) : rank_(rank) {}

  void compare(const State& got, const State& expected, bool with_buffers,
               const std::string& what) {
    const std::size_t end = with_buffers ? expected.tensors.size() : expected.num_parameters;
    for (std::size_t i = 0; i < end; ++i) {
      if (is_same(got.tensors.at(i), expected.tensors[i])) continue;
      std::cout << "FAILED on rank " << rank_ << ": " << what << ": " << expected.names[i]
                << std::endl;
      ++count_;
      return;
    }
  }

  std::int64_t over(const comm::Group& group) const {
    const torch::Tensor sum = torch::full({1}, count_, torch::kLong);
    comm::all_reduce(sum, group);
    return sum.item<std::int64_t>();
  }

 private:
  int rank_;
  std::int64_t count_ = 0;
};

// Ranks share the work, and send each other what they computed.
std::map<Subject, State> references(const std::vector<Case>& cases, RankOrder order,
                                    const comm::Group& group, Failures& failures) {
  std::map<Subject, State> all;
  for (const Case& item : cases) all[item.subject] = {};
  int turn = 0;
  for (auto& [subject, state] : all) {
    if (turn++ % group.size() != group.rank()) {
      state = initial_state(subject.model);  // the sizes of what is to come
      continue;
    }
    state = train_alone(subject, group.size(), order);
    if (order == RankOrder::kForward && (group.size() == 1 || subject.micro_batches == 1)) {
      failures.compare(state, train_plainly(subject, group.size()), group.size() == 1,
                       to_string(subject) + ", alone against a plain loop");
    }
  }
  turn = 0;
  for (const auto& [subject, state] : all) {
    const int root = turn++ % group.size();
    for (const torch::Tensor& tensor : state.tensors) comm::broadcast(tensor, root, group);
  }
  return all;
}

int compare_all(const std::vector<Case>& cases, RankOrder order, const World& world) {
  torch::set_num_threads(1);
  Failures failures(world.rank);
  const auto expected = references(cases, order, world.group, failures);
  for (const Case& item : cases) {
    failures.compare(train_parallel(item.subject, item.variant, world.group),
                     expected.at(item.subject), /*with_buffers=*/true,
                     to_string(item.subject) + ", " + to_string(item.variant));
  }
  const std::int64_t count = failures.over(world.group);
  if (world.is_first()) {
    std::cout << world.size << " ranks, " << expected.size() << " references, " << cases.size()
              << " cases, ZeRO levels 0 to " << kHighestZeroLevel << ": " << count << " differences"
              << std::endl;
  }
  // A rank that fails ends the others: the first alone does, after it has said why.
  return !world.is_first() || count == 0 ? 0 : 1;
}

}  // namespace
}  // namespace trireme::test

int main(int count, char** arguments) try {
  using trireme::test::compare_all;
  using trireme::test::few_cases;
  using trireme::test::RankOrder;
  const trireme::World world = trireme::init();
  const std::string which = count == 2 ? arguments[1] : "";
  if (which == "fast") return compare_all(few_cases(), RankOrder::kForward, world);
  if (which == "grid")
    return compare_all(trireme::test::grid(world.size), RankOrder::kForward, world);
  if (which == "reverse") return compare_all(few_cases(), RankOrder::kReverse, world);
  std::cerr << "usage: parallel_models_program fast|grid|reverse" << std::endl;
  return 2;
} catch (const std::exception& error) {
  std::cerr << error.what() << std::endl;
  return 1;
}
