// SPDX-License-Identifier: Apache-2.0
// Collectives that check themselves. What every rank contributes follows from a seed, so each rank
// knows what should come out of an operation, and says what did not.
#pragma once

#include <trireme/base/error.h>
#include <trireme/comm/engines/shm/communicator.h>
#include <trireme/comm/engines/shm/fold.h>

#include <tests/unit/comm/fold_reference.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace trireme::shm::test {

/// One collective. Lengths are in elements of `type`, also where the engine counts bytes.
struct Plan {
  Kind kind = Kind::kAllReduce;
  DataType type = DataType::kFloat32;
  Reduction reduction = {};
  int root = 0;  ///< where there is one
  std::vector<std::size_t> counts =
      {};  ///< by rank; where all have the same length, the first counts
  bool is_in_place = false;
  bool is_started = false;  // an all-reduce in the background
  std::uint64_t seed = 0;
  std::string label = {};

  std::size_t count(int rank) const { return counts[static_cast<std::size_t>(rank)]; }
  /// Of an all-to-all.
  std::size_t count(int from, int to) const {
    return is_in_place ? counts[0] : (count(from) + 3 * count(to)) / 4;
  }
};

inline std::string describe(const Plan& plan) {
  std::string text = join_message(
      name_of(plan.kind), " ", name_of(plan.reduction.op), " ", name_of(plan.type), " root ",
      plan.root, plan.is_in_place ? " in place" : "", " seed ", plan.seed, " counts");
  for (const std::size_t count : plan.counts) text += join_message(" ", count);
  return text;
}

// Runs one plan on one rank, and keeps what it found.
class CheckedOperation {
 public:
  CheckedOperation(Communicator& group, const Plan& plan)
      : group_(group),
        plan_(plan),
        size_(group.size()),
        rank_(group.rank()),
        element_(size_of(plan.type)) {}

  /// Returns an empty text, or what was wrong.
  std::string run() {
    switch (plan_.kind) {
      case Kind::kAllReduce:
        all_reduce();
        break;
      case Kind::kReduce:
        reduce();
        break;
      case Kind::kBroadcast:
        broadcast();
        break;
      case Kind::kAllGather:
      case Kind::kGather:
        gather();
        break;
      case Kind::kReduceScatter:
        reduce_scatter();
        break;
      case Kind::kScatter:
        scatter();
        break;
      case Kind::kAllToAll:
        all_to_all();
        break;
      default:
        group_.barrier(plan_.label);
    }
    if (wrong_.empty()) return wrong_;
    return join_message("rank ", rank_, " of ", size_, ", ", describe(plan_), ": ", wrong_);
  }

 private:
  // What `rank` contributes; `piece` tells those apart that go to different ranks.
  Bytes values(int rank, std::size_t count, int piece = 0) const {
    const auto salt = static_cast<std::uint64_t>(rank) * 64 + static_cast<std::uint64_t>(piece) + 1;
    return random_values(plan_.seed * 7919 + salt * 104729, plan_.type, count);
  }

  Bytes folded(std::size_t count) const {
    std::vector<Bytes> all;
    std::vector<const std::byte*> from;
    for (int rank = 0; rank < size_; ++rank) all.push_back(values(rank, count));
    for (const Bytes& each : all) from.push_back(each.data());
    return fold_reference(from, count, plan_.type, plan_.reduction);
  }

  void expect(const std::byte* actual, const Bytes& expected, const char* what) {
    if (!wrong_.empty() || expected.empty()) return;
    const auto differs = std::mismatch(expected.begin(), expected.end(), actual).first;
    if (differs == expected.end()) return;
    wrong_ = join_message(what, ", element ",
                          static_cast<std::size_t>(differs - expected.begin()) / element_, " of ",
                          expected.size() / element_);
  }

  bool is_root() const { return rank_ == plan_.root; }

  void all_reduce() {
    const std::size_t count = plan_.counts[0];
    const Bytes own = values(rank_, count);
    Bytes input = own;
    Bytes other(own.size());
    Bytes& output = plan_.is_in_place ? input : other;
    if (plan_.is_started) {
      // Two at once: the first is left to its waiter where it is short, the other one is not.
      std::int64_t sum = rank_;
      const auto first = group_.start_all_reduce(input.data(), output.data(), count, plan_.type,
                                                 plan_.reduction, plan_.label, nullptr);
      const auto second = group_.start_all_reduce(&sum, &sum, 1, DataType::kInt64, {}, "", nullptr);
      group_.collectives().wait(*second);
      group_.collectives().wait(*first);
      const std::int64_t ranks = group_.size();
      if (sum != ranks * (ranks - 1) / 2) wrong_ = "the sum of ranks";
    } else {
      group_.all_reduce(input.data(), output.data(), count, plan_.type, plan_.reduction,
                        plan_.label);
    }
    expect(output.data(), folded(count), "the result");
    if (!plan_.is_in_place) expect(input.data(), own, "the input afterwards");
  }

  void reduce() {
    const std::size_t count = plan_.counts[0];
    const Bytes own = values(rank_, count);
    Bytes input = own;
    Bytes other(own.size(), std::byte{0xab});
    Bytes& output = plan_.is_in_place ? input : other;
    group_.reduce(input.data(), output.data(), count, plan_.type, plan_.reduction, plan_.root,
                  plan_.label);
    if (is_root()) {
      expect(output.data(), folded(count), "the result");
    } else {
      expect(input.data(), own, "the input afterwards");
      expect(other.data(), Bytes(own.size(), std::byte{0xab}), "the output of another than root");
    }
  }

  void broadcast() {
    const Bytes expected = values(plan_.root, plan_.counts[0]);
    Bytes data = is_root() ? expected : Bytes(expected.size());
    group_.broadcast(data.data(), data.size(), plan_.root, plan_.label);
    expect(data.data(), expected, "the data");
  }

  void gather() {
    const bool to_root_only = plan_.kind == Kind::kGather;
    const bool receives = !to_root_only || is_root();
    std::vector<std::size_t> bytes;
    std::vector<Bytes> received;
    std::vector<void*> outputs;
    for (int rank = 0; rank < size_; ++rank) {
      bytes.push_back(plan_.count(rank) * element_);
      received.emplace_back(receives ? bytes.back() : 0);
    }
    for (Bytes& each : received) outputs.push_back(each.data());
    const Bytes own = values(rank_, plan_.count(rank_));
    const void* input = own.data();
    if (plan_.is_in_place && receives) {
      Bytes& place = received[static_cast<std::size_t>(rank_)];
      place = own;
      input = outputs[static_cast<std::size_t>(rank_)] = place.data();
    }
    if (to_root_only) {
      group_.gather(input, outputs, bytes, plan_.root, plan_.label);
    } else {
      group_.all_gather(input, outputs, bytes, plan_.label);
    }
    for (int rank = 0; receives && rank < size_; ++rank) {
      expect(received[static_cast<std::size_t>(rank)].data(), values(rank, plan_.count(rank)),
             "a piece");
    }
  }

  void reduce_scatter() {
    const std::size_t total =
        std::accumulate(plan_.counts.begin(), plan_.counts.end(), std::size_t{0});
    const std::size_t before =
        std::accumulate(plan_.counts.begin(), plan_.counts.begin() + rank_, std::size_t{0});
    const Bytes own = values(rank_, total);
    Bytes input = own;
    Bytes other(plan_.count(rank_) * element_);
    std::byte* const output = plan_.is_in_place ? input.data() + before * element_ : other.data();
    group_.reduce_scatter(input.data(), output, plan_.counts, plan_.type, plan_.reduction,
                          plan_.label);
    const Bytes all = folded(total);
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(before * element_);
    expect(output, Bytes(begin, begin + static_cast<std::ptrdiff_t>(other.size())), "the result");
    if (!plan_.is_in_place) expect(input.data(), own, "the input afterwards");
  }

  void scatter() {
    const std::size_t count = plan_.counts[0];
    std::vector<Bytes> pieces;
    std::vector<const void*> inputs;
    for (int rank = 0; is_root() && rank < size_; ++rank) {
      pieces.push_back(values(plan_.root, count, rank));
    }
    for (const Bytes& piece : pieces) inputs.push_back(piece.data());
    Bytes other(count * element_);
    std::byte* const output = plan_.is_in_place && is_root()
                                  ? pieces[static_cast<std::size_t>(rank_)].data()
                                  : other.data();
    group_.scatter(inputs, output, other.size(), plan_.root, plan_.label);
    expect(output, values(plan_.root, count, rank_), "the piece");
  }

  void all_to_all() {
    std::vector<Bytes> sent;
    std::vector<Bytes> received;
    std::vector<const void*> inputs;
    std::vector<void*> outputs;
    std::vector<std::size_t> input_bytes;
    std::vector<std::size_t> output_bytes;
    for (int peer = 0; peer < size_; ++peer) {
      sent.push_back(values(rank_, plan_.count(rank_, peer), peer));
      received.emplace_back(plan_.count(peer, rank_) * element_);
      input_bytes.push_back(sent.back().size());
      output_bytes.push_back(received.back().size());
    }
    std::vector<Bytes>& results = plan_.is_in_place ? sent : received;
    for (int peer = 0; peer < size_; ++peer) {
      inputs.push_back(sent[static_cast<std::size_t>(peer)].data());
      outputs.push_back(results[static_cast<std::size_t>(peer)].data());
    }
    group_.all_to_all(inputs, input_bytes, outputs, output_bytes, plan_.label);
    for (int peer = 0; peer < size_; ++peer) {
      expect(results[static_cast<std::size_t>(peer)].data(),
             values(peer, plan_.count(peer, rank_), rank_), "a piece");
    }
  }

  Communicator& group_;
  const Plan& plan_;
  int size_;
  int rank_;
  std::size_t element_;
  std::string wrong_;
};

/// Runs a plan on this rank, and returns an empty text or what came out wrong.
inline std::string run_checked(Communicator& group, const Plan& plan) {
  return CheckedOperation(group, plan).run();
}

/// Any collective for a group of that size; most messages are small, a few reach `longest`
/// elements.
inline Plan random_plan(Random& random, int size, std::size_t longest) {
  Plan plan;
  plan.seed = random.next() % 1'000'000;
  plan.kind = static_cast<Kind>(1 + random.below(static_cast<std::size_t>(Kind::kBarrier)));
  plan.root = static_cast<int>(random.below(static_cast<std::size_t>(size)));
  do {
    plan.type = static_cast<DataType>(random.below(kNumDataTypes));
    plan.reduction.op = static_cast<ReduceOp>(random.below(kNumReduceOps));
  } while (!is_defined(plan.reduction.op, plan.type));
  plan.reduction.factor = 1 + static_cast<double>(random.below(1000)) / 1024;
  plan.is_in_place = random.below(2) == 0;
  plan.is_started = random.below(2) == 0;
  const std::size_t limits[] = {1, 8, 100, 1000, 8000};
  const std::size_t limit =
      random.below(20) == 0 ? longest : std::min(longest, limits[random.below(std::size(limits))]);
  for (int rank = 0; rank < size; ++rank) plan.counts.push_back(random.below(limit + 1));
  return plan;
}

}  // namespace trireme::shm::test
