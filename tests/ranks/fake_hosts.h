// SPDX-License-Identifier: Apache-2.0
// Fake hosts: each rank is a thread, with Gloo (or shared memory) inside and Gloo across.
#pragma once

#include <trireme/comm/collectives.h>
#include <trireme/comm/engines/hierarchy/hierarchy.h>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace trireme::comm {

using Tensors = std::vector<at::Tensor>;

struct Layout {
  const char* name;
  std::vector<int> hosts;
  int leaders = 0;
  std::int64_t one_leader_below = 0;
  const char* inside = "gloo";
};

// GoogleTest looks for this name.
// NOLINTNEXTLINE(readability-identifier-naming)
inline void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

using Body = std::function<void(c10d::Backend&)>;

// Runs `body` on a thread for each rank; returns what each threw.
inline std::vector<std::exception_ptr> run_catching(
    const Layout& layout, const Body& body, const HierarchyOptions& more = {},
    std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> thrown(layout.hosts.size());
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < static_cast<int>(layout.hosts.size()); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        HierarchyOptions options = more;
        options.leaders = layout.leaders;
        options.one_leader_below = layout.one_leader_below;
        const auto backend = connect_hierarchy({.store = store,
                                                .rank = rank,
                                                .size = static_cast<int>(layout.hosts.size()),
                                                .group_name = "fake hosts",
                                                .timeout = timeout},
                                               layout.hosts, choose_engine(layout.inside, true),
                                               choose_engine("gloo", true), options);
        // As the proof of a Group does: Gloo waits for a peer that has closed before it was there.
        const auto size = static_cast<std::int64_t>(layout.hosts.size());
        if (store->add("connected", 1) == size)
          store->set("all are connected", std::vector<std::uint8_t>());
        store->wait({"all are connected"}, timeout);
        body(*backend);
      } catch (...) {
        thrown[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  threads.clear();  // joins
  return thrown;
}

inline void run(const Layout& layout, const Body& body, const HierarchyOptions& more = {}) {
  for (const std::exception_ptr& exception : run_catching(layout, body, more)) {
    if (exception) std::rethrow_exception(exception);
  }
}

// Small whole numbers, so that every order of summation gives the same bits in every dtype.
inline at::Tensor numbers(int rank, std::int64_t size, at::ScalarType dtype) {
  return at::arange(size, at::kLong).mul(rank + 3).add(rank).remainder(5).to(dtype);
}

inline at::Tensor sum_of_numbers(int ranks, std::int64_t size, at::ScalarType dtype) {
  at::Tensor sum = numbers(0, size, dtype);
  for (int rank = 1; rank < ranks; ++rank) sum += numbers(rank, size, dtype);
  return sum;
}

inline c10d::AllreduceOptions all_reduce_by(const c10d::ReduceOp& op) {
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  return options;
}

inline at::Tensor all_reduced(c10d::Backend& backend, const at::Tensor& tensor,
                              const c10d::ReduceOp& op = c10d::ReduceOp::SUM) {
  Tensors tensors = {tensor.clone()};
  backend.allreduce(tensors, all_reduce_by(op))->wait();
  return tensors[0];
}

#define TRIREME_EXPECT_SAME(got, expected)                                         \
  EXPECT_TRUE(at::equal(got, expected))                                            \
      << "rank " << backend.getRank() << ", size " << (expected).numel() << " of " \
      << (expected).scalar_type() << "\n"                                          \
      << (got) << "\n"                                                             \
      << (expected)

}  // namespace trireme::comm
