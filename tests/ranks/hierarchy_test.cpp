// SPDX-License-Identifier: Apache-2.0
// Every collective over fake hosts against a plain reference, with Gloo inside and across.
#include <trireme/base/error.h>

#include <tests/ranks/fake_hosts.h>

#include <atomic>
#include <numeric>

namespace trireme::comm {
namespace {

using ::testing::ElementsAre;

class Hierarchy : public ::testing::TestWithParam<Layout> {};

constexpr std::int64_t kSizes[] = {0, 1, 2, 3, 7, 64, 1001, 20'000};

TEST_P(Hierarchy, AllReducesEverySizeAndDtype) {
  run(GetParam(), [](c10d::Backend& backend) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong,
                                       at::kInt, at::kByte, at::kComplexFloat}) {
      for (const std::int64_t size : kSizes) {
        TRIREME_EXPECT_SAME(all_reduced(backend, numbers(backend.getRank(), size, dtype)),
                            sum_of_numbers(backend.getSize(), size, dtype));
      }
    }
  });
}

TEST_P(Hierarchy, AllReducesByEveryOperation) {
  run(GetParam(), [](c10d::Backend& backend) {
    const int ranks = backend.getSize();
    for (const std::int64_t size : {1, 7, 1001}) {
      Tensors all;
      for (int rank = 0; rank < ranks; ++rank) all.push_back(numbers(rank, size, at::kInt));
      const at::Tensor own = all[static_cast<std::size_t>(backend.getRank())];
      const at::Tensor stacked = at::stack(all);
      TRIREME_EXPECT_SAME(all_reduced(backend, own, c10d::ReduceOp::PRODUCT),
                          stacked.prod(0).to(at::kInt));
      TRIREME_EXPECT_SAME(all_reduced(backend, own, c10d::ReduceOp::MIN), stacked.amin(0));
      TRIREME_EXPECT_SAME(all_reduced(backend, own, c10d::ReduceOp::MAX), stacked.amax(0));
      at::Tensor both = all[0];
      at::Tensor any = all[0];
      at::Tensor odd = all[0];
      for (std::size_t rank = 1; rank < all.size(); ++rank) {
        both = both.bitwise_and(all[rank]);
        any = any.bitwise_or(all[rank]);
        odd = odd.bitwise_xor(all[rank]);
      }
      TRIREME_EXPECT_SAME(all_reduced(backend, own, c10d::ReduceOp::BAND), both);
      TRIREME_EXPECT_SAME(all_reduced(backend, own, c10d::ReduceOp::BOR), any);
      TRIREME_EXPECT_SAME(all_reduced(backend, own, c10d::ReduceOp::BXOR), odd);
      TRIREME_EXPECT_SAME(all_reduced(backend, own, c10d::ReduceOp::AVG),
                          stacked.sum(0).div(ranks, "trunc").to(at::kInt));
      // One true division of the sum, not a product with 1/ranks.
      TRIREME_EXPECT_SAME(all_reduced(backend, own.to(at::kFloat), c10d::ReduceOp::AVG),
                          stacked.sum(0).to(at::kFloat).div(ranks));
      TRIREME_EXPECT_SAME(
          all_reduced(backend, own.to(at::kFloat), c10d::makePreMulSum<double>(0.5)),
          stacked.sum(0).to(at::kFloat).mul(0.5));
      TRIREME_EXPECT_SAME(all_reduced(backend, own.to(at::kFloat),
                                      c10d::makePreMulSum<at::Tensor>(at::full({1}, 0.25F))),
                          stacked.sum(0).to(at::kFloat).mul(0.25));
    }
  });
}

TEST_P(Hierarchy, ReducesToEveryRootAndLeavesTheOthersTensorsAlone) {
  run(GetParam(), [](c10d::Backend& backend) {
    for (int root = 0; root < backend.getSize(); ++root) {
      for (const std::int64_t size : {0, 1, 7, 1001}) {
        const at::Tensor own = numbers(backend.getRank(), size, at::kFloat);
        Tensors tensors = {own.clone()};
        c10d::ReduceOptions options;
        options.rootRank = root;
        options.reduceOp = c10d::ReduceOp::AVG;
        backend.reduce(tensors, options)->wait();
        const at::Tensor average =
            sum_of_numbers(backend.getSize(), size, at::kFloat).div(backend.getSize());
        TRIREME_EXPECT_SAME(tensors[0], backend.getRank() == root ? average : own);
      }
    }
  });
}

TEST_P(Hierarchy, BroadcastsFromEveryRootInEveryDtype) {
  run(GetParam(), [](c10d::Backend& backend) {
    for (int root = 0; root < backend.getSize(); ++root) {
      for (const at::ScalarType dtype : {at::kFloat, at::kShort, at::kBool, at::kComplexDouble}) {
        for (const std::int64_t size : kSizes) {
          Tensors tensors = {numbers(backend.getRank(), size, dtype)};
          c10d::BroadcastOptions options;
          options.rootRank = root;
          backend.broadcast(tensors, options)->wait();
          TRIREME_EXPECT_SAME(tensors[0], numbers(root, size, dtype));
        }
      }
    }
  });
}

TEST_P(Hierarchy, GathersToAll) {
  run(GetParam(), [](c10d::Backend& backend) {
    const int ranks = backend.getSize();
    for (const std::int64_t size : kSizes) {
      Tensors all;
      for (int rank = 0; rank < ranks; ++rank) all.push_back(numbers(rank, size, at::kShort));
      at::Tensor input = all[static_cast<std::size_t>(backend.getRank())].clone();
      at::Tensor output = at::full({ranks * size}, -1, at::kShort);
      backend._allgather_base(output, input, {})->wait();
      TRIREME_EXPECT_SAME(output, at::cat(all));

      std::vector<Tensors> outputs(1);
      for (const at::Tensor& tensor : all) outputs[0].push_back(at::empty_like(tensor));
      Tensors inputs = {input};
      backend.allgather(outputs, inputs, {})->wait();
      TRIREME_EXPECT_SAME(at::cat(outputs[0]), at::cat(all));
    }
  });
}

TEST_P(Hierarchy, GathersUnevenSharesToAll) {
  run(GetParam(), [](c10d::Backend& backend) {
    for (const std::int64_t step : {0, 1, 13, 900}) {
      Tensors all;
      std::vector<Tensors> outputs(1);
      for (int rank = 0; rank < backend.getSize(); ++rank) {
        all.push_back(numbers(rank, step * ((rank + 1) % 3), at::kDouble));  // some have none
        outputs[0].push_back(at::empty_like(all.back()));
      }
      Tensors inputs = {all[static_cast<std::size_t>(backend.getRank())]};
      backend.allgather(outputs, inputs, {})->wait();
      TRIREME_EXPECT_SAME(at::cat(outputs[0]), at::cat(all));
    }
  });
}

TEST_P(Hierarchy, ReduceScatters) {
  run(GetParam(), [](c10d::Backend& backend) {
    const int ranks = backend.getSize();
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
      for (const std::int64_t size : kSizes) {
        at::Tensor input = numbers(backend.getRank(), size * ranks, dtype);
        const at::Tensor before = input.clone();
        at::Tensor output = at::full({size}, -1, dtype);
        backend._reduce_scatter_base(output, input, {})->wait();
        TRIREME_EXPECT_SAME(
            output,
            sum_of_numbers(ranks, size * ranks, dtype).narrow(0, backend.getRank() * size, size));
        TRIREME_EXPECT_SAME(input, before);
      }
    }
  });
}

TEST_P(Hierarchy, ReduceScattersUnevenShares) {
  run(GetParam(), [](c10d::Backend& backend) {
    const int ranks = backend.getSize();
    for (const std::int64_t step : {0, 1, 13, 900}) {
      std::vector<std::int64_t> lengths;
      for (int rank = 0; rank < ranks; ++rank) lengths.push_back(step * ((rank + 1) % 3));
      const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
      std::vector<Tensors> inputs = {
          numbers(backend.getRank(), total, at::kFloat).split_with_sizes(lengths)};
      const auto own = static_cast<std::size_t>(backend.getRank());
      Tensors outputs = {at::full({lengths[own]}, -1, at::kFloat)};
      backend.reduce_scatter(outputs, inputs, {})->wait();
      TRIREME_EXPECT_SAME(outputs[0],
                          sum_of_numbers(ranks, total, at::kFloat).split_with_sizes(lengths)[own]);
    }
  });
}

TEST_P(Hierarchy, GathersToAndScattersFromEveryRoot) {
  run(GetParam(), [](c10d::Backend& backend) {
    const int ranks = backend.getSize();
    for (int root = 0; root < ranks; ++root) {
      for (const std::int64_t size : {0, 1, 7, 1001}) {
        Tensors all;
        for (int rank = 0; rank < ranks; ++rank) all.push_back(numbers(rank, size, at::kInt));
        const at::Tensor own = all[static_cast<std::size_t>(backend.getRank())];

        std::vector<Tensors> gathered;
        if (backend.getRank() == root) gathered = {at::zeros({ranks, size}, at::kInt).unbind()};
        Tensors inputs = {own.clone()};
        c10d::GatherOptions gather;
        gather.rootRank = root;
        backend.gather(gathered, inputs, gather)->wait();
        if (backend.getRank() == root) {
          TRIREME_EXPECT_SAME(at::cat(gathered[0]), at::cat(all));
        }

        std::vector<Tensors> scattered;
        if (backend.getRank() == root) scattered = {all};
        Tensors outputs = {at::zeros({size}, at::kInt)};
        c10d::ScatterOptions scatter;
        scatter.rootRank = root;
        backend.scatter(outputs, scattered, scatter)->wait();
        TRIREME_EXPECT_SAME(outputs[0], own);
      }
    }
  });
}

TEST_P(Hierarchy, ExchangesEqualAndUnequalPartsAllToAll) {
  run(GetParam(), [](c10d::Backend& backend) {
    const int ranks = backend.getSize();
    const int own = backend.getRank();
    std::vector<std::int64_t> none;
    for (const std::int64_t size : {0, 1, 5, 3000}) {
      // Element (i, j) of the whole goes from rank i to rank j.
      at::Tensor input = at::arange(ranks * size, at::kInt).add(own * 100'000);
      at::Tensor output = at::empty_like(input);
      backend.alltoall_base(output, input, none, none, {})->wait();
      Tensors expected;
      for (int from = 0; from < ranks; ++from) {
        expected.push_back(at::arange(own * size, (own + 1) * size, at::kInt).add(from * 100'000));
      }
      TRIREME_EXPECT_SAME(output, at::cat(expected));
    }
    // Rows of two from i to j: (i + 2 j) % 3.
    const auto rows = [](int from, int to) { return std::int64_t{(from + 2 * to) % 3}; };
    std::vector<std::int64_t> input_splits;
    std::vector<std::int64_t> output_splits;
    Tensors inputs;
    Tensors expected;
    for (int rank = 0; rank < ranks; ++rank) {
      input_splits.push_back(rows(own, rank));
      output_splits.push_back(rows(rank, own));
      inputs.push_back(at::full({rows(own, rank), 2}, 10 * own + rank, at::kShort));
      expected.push_back(at::full({rows(rank, own), 2}, 10 * rank + own, at::kShort));
    }
    at::Tensor input = at::cat(inputs);
    at::Tensor output = at::zeros_like(at::cat(expected));
    backend.alltoall_base(output, input, output_splits, input_splits, {})->wait();
    TRIREME_EXPECT_SAME(output, at::cat(expected));
    Tensors outputs;
    for (const at::Tensor& tensor : expected) outputs.push_back(at::zeros_like(tensor));
    backend.alltoall(outputs, inputs, {})->wait();
    TRIREME_EXPECT_SAME(at::cat(outputs), at::cat(expected));
  });
}

TEST_P(Hierarchy, RunsCoalescedFormsInOrder) {
  run(GetParam(), [](c10d::Backend& backend) {
    const std::int64_t ranks = backend.getSize();
    const int own = backend.getRank();
    Tensors tensors = {numbers(own, 5, at::kFloat), numbers(own, 700, at::kLong)};
    backend.allreduce_coalesced(tensors, {})->wait();
    TRIREME_EXPECT_SAME(tensors[0], sum_of_numbers(static_cast<int>(ranks), 5, at::kFloat));
    TRIREME_EXPECT_SAME(tensors[1], sum_of_numbers(static_cast<int>(ranks), 700, at::kLong));

    Tensors inputs = {numbers(own, 3, at::kFloat), numbers(own, 100, at::kInt)};
    Tensors outputs = {at::empty({3 * ranks}), at::empty({100 * ranks}, at::kInt)};
    backend.allgather_into_tensor_coalesced(outputs, inputs, {})->wait();
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      TRIREME_EXPECT_SAME(outputs[0].narrow(0, rank * 3, 3),
                          numbers(static_cast<int>(rank), 3, at::kFloat));
      TRIREME_EXPECT_SAME(outputs[1].narrow(0, rank * 100, 100),
                          numbers(static_cast<int>(rank), 100, at::kInt));
    }
    Tensors small = {at::empty({3}), at::empty({100}, at::kInt)};
    Tensors large = {numbers(own, 3 * ranks, at::kFloat), numbers(own, 100 * ranks, at::kInt)};
    backend.reduce_scatter_tensor_coalesced(small, large, {})->wait();
    TRIREME_EXPECT_SAME(small[0], sum_of_numbers(static_cast<int>(ranks), 3 * ranks, at::kFloat)
                                      .narrow(0, std::int64_t{own} * 3, 3));
    TRIREME_EXPECT_SAME(small[1], sum_of_numbers(static_cast<int>(ranks), 100 * ranks, at::kInt)
                                      .narrow(0, std::int64_t{own} * 100, 100));
  });
}

TEST_P(Hierarchy, SendsBetweenAnyTwoRanks) {
  run(GetParam(), [](c10d::Backend& backend) {
    const int own = backend.getRank();
    for (int from = 0; from < backend.getSize(); ++from) {
      for (int to = 0; to < backend.getSize(); ++to) {
        if (from == to || (own != from && own != to)) continue;
        Tensors tensors = {own == from ? at::full({9}, 10 * from + to, at::kInt)
                                       : at::zeros({9}, at::kInt)};
        const auto work =
            own == from ? backend.send(tensors, to, 5) : backend.recv(tensors, from, 5);
        work->wait();
        TRIREME_EXPECT_SAME(tensors[0], at::full({9}, 10 * from + to, at::kInt));
        if (own == to) {
          EXPECT_EQ(work->sourceRank(), from);
        }
      }
    }
  });
}

TEST_P(Hierarchy, LetsNobodyThroughABarrierBeforeTheLastCame) {
  std::atomic<int> arrived = 0;
  run(GetParam(), [&](c10d::Backend& backend) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      backend.barrier({})->wait();
      EXPECT_GE(arrived.load(), round * backend.getSize());
    }
  });
}

TEST_P(Hierarchy, TakesAndFillsTensorsWithGaps) {
  run(GetParam(), [](c10d::Backend& backend) {
    const at::Tensor wide = at::zeros({6, 4});
    const at::Tensor columns = wide.slice(1, 0, 4, 2);
    columns.fill_(backend.getRank() + 1);
    Tensors tensors = {columns};
    backend.allreduce(tensors, {})->wait();
    const int ranks = backend.getSize();
    const int sum = ranks * (ranks + 1) / 2;
    TRIREME_EXPECT_SAME(columns, at::full({6, 2}, static_cast<float>(sum)));
    TRIREME_EXPECT_SAME(wide.slice(1, 1, 4, 2), at::zeros({6, 2}));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Hierarchy,
    ::testing::Values(Layout{"TwoAndTwo", {0, 0, 1, 1}},
                      Layout{"TwoAndTwoOneLeader", {0, 0, 1, 1}, 1},
                      Layout{"TwoAndTwoLeadersBySize", {0, 0, 1, 1}, 0, 1000},
                      Layout{"ThreeAndOne", {0, 0, 0, 1}},
                      Layout{"OneOneTwo", {7, 4, 5, 5}, 0, 0, "shm"},
                      Layout{"Interleaved", {0, 1, 0, 1}, 0, 0, "shm"},
                      Layout{"ThreeAndThreeTwoLeaders", {0, 0, 1, 1, 0, 1}, 2, 0, "shm"},
                      Layout{"ThreeHostsOfTwo", {0, 0, 1, 1, 2, 2}, 0, 0, "shm"},
                      Layout{"ThreeAndTwoSharedMemory", {1, 0, 1, 0, 1}, 0, 1000, "shm"},
                      Layout{"OneHost", {0, 0, 0}}, Layout{"EachAlone", {0, 1, 2}}),
    [](const auto& layout) { return layout.param.name; });

// ---- Order of summation

// (((x of host 0's ranks in order) + (host 1's)) + ...). What is narrower than fp32 is carried in
// it, and rounded once inside each host and once across.
at::Tensor nested_sum(const HostMap& hosts, const Tensors& of_rank) {
  const at::ScalarType dtype = of_rank[0].scalar_type();
  at::Tensor total;
  for (int host = 0; host < hosts.num_hosts(); ++host) {
    at::Tensor partial;
    for (const int rank : hosts.members(host)) {
      const at::Tensor own = of_rank[static_cast<std::size_t>(rank)].to(at::kFloat);
      partial = partial.defined() ? partial + own : own;
    }
    partial = partial.to(dtype).to(at::kFloat);
    total = total.defined() ? total + partial : partial;
  }
  return total.to(dtype);
}

TEST(HierarchyOrder, IsHostNestedBitForBitForEverySizeAndNumberOfLeaders) {
  for (const Layout& layout :
       {Layout{"", {0, 0, 1, 1}}, Layout{"", {0, 0, 1, 1}, 1}, Layout{"", {0, 1, 1, 0, 2, 2}},
        Layout{"", {0, 1, 2, 2}}, Layout{"", {0, 1, 2, 3, 4}},
        Layout{"", {0, 0, 0, 1, 1}, 0, 0, "shm"}}) {
    const HostMap hosts(layout.hosts, layout.leaders);
    run(layout, [&](c10d::Backend& backend) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        for (const std::int64_t size : {3, 1001, 600'001}) {  // the last goes in parts
          Tensors of_rank;
          for (int rank = 0; rank < backend.getSize(); ++rank) {
            // Magnitudes far apart, so that another order gives other bits.
            of_rank.push_back(at::sin(at::arange(size, at::kFloat).mul(rank + 1.7))
                                  .pow(5)
                                  .mul(rank + 1)
                                  .to(dtype));
          }
          const at::Tensor own = of_rank[static_cast<std::size_t>(backend.getRank())];
          TRIREME_EXPECT_SAME(all_reduced(backend, own), nested_sum(hosts, of_rank));
          Tensors tensors = {own.clone()};
          c10d::ReduceOptions options;
          options.rootRank = 1;
          backend.reduce(tensors, options)->wait();
          if (backend.getRank() == 1) {
            TRIREME_EXPECT_SAME(tensors[0], nested_sum(hosts, of_rank));
          }
        }
      }
    });
  }
}

// The sum of a host was rounded to half precision, and so to infinity.
TEST(HierarchyOrder, AveragesHalfPrecisionWhoseSumWouldOverflow) {
  for (const Layout& layout : {Layout{"", {0, 0, 1, 1}}, Layout{"", {0, 0, 0, 1}},
                               Layout{"", {0, 0, 1}}, Layout{"", {0, 0, 0}}}) {
    run(layout, [](c10d::Backend& backend) {
      for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
        for (const std::int64_t size : {3, 600'001}) {
          const at::Tensor own = at::full({size}, 65504.0 / 2, dtype);
          TRIREME_EXPECT_SAME(all_reduced(backend, own, c10d::ReduceOp::AVG), own);
        }
      }
    });
  }
}

TEST(HierarchyOrder, IsReported) {
  const Engine& gloo = choose_engine("gloo", true);
  const auto order = [&](const std::vector<int>& hosts) {
    return summation_order(HostMap(hosts, 0), gloo);
  };
  EXPECT_EQ(order({0, 0, 1, 1}), SummationOrder::kHostNested);
  EXPECT_EQ(order({0, 1, 2}), SummationOrder::kRank);
  EXPECT_EQ(order({0, 0}), SummationOrder::kRank);
  EXPECT_EQ(order({0, 0, 0, 1}), SummationOrder::kUnspecified);  // Gloo's own among three
}

// ---- Work

TEST(HierarchyWork, RunsInTheBackgroundInTheOrderOfTheCalls) {
  run({"", {0, 0, 1, 1}}, [](c10d::Backend& backend) {
    std::vector<Tensors> tensors;
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (int i = 0; i < 8; ++i) {
      tensors.push_back({at::full({1000}, static_cast<float>(i + backend.getRank()))});
      works.push_back(backend.allreduce(tensors.back(), {}));
    }
    for (std::size_t i = 0; i < works.size(); ++i) {
      EXPECT_EQ(works[i]->getSequencenumber(), i + 1);
      const auto future = works[i]->getFuture();
      future->wait();
      EXPECT_EQ(future->value().toTensorVector()[0][999].item<float>(),
                static_cast<float>(4 * i + 6));
      EXPECT_TRUE(works[i]->wait());
      EXPECT_TRUE(works[i]->isCompleted());
      EXPECT_TRUE(works[i]->isSuccess());
      EXPECT_EQ(works[i]->result()[0].data_ptr(), tensors[i][0].data_ptr());
    }
    EXPECT_EQ(backend.getSequenceNumberForGroup(), 8);
    EXPECT_EQ(backend.getBackendName(), "gloo+gloo");
  });
}

TEST(HierarchyWork, IsFinishedWhereItsBackendIsDroppedFirst) {
  run({"", {0, 0, 1, 1}}, [](c10d::Backend& backend) {
    // The caller of this body holds the last handle and lets go of it after.
    Tensors tensors = {at::ones({1000})};
    backend.allreduce(tensors, {});
  });
}

TEST(HierarchyEngine, CarriesGroupsOverTheMachinesThatItIsTold) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const Engine engine = hierarchical_engine();
  EXPECT_EQ(engine.unavailable_because(), "");
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      const Group group = connect(engine, {.store = store,
                                           .rank = rank,
                                           .size = 4,
                                           .group_name = "all",
                                           .machines = {"a", "b", "a", "b"},
                                           .interface = "lo",
                                           .timeout = std::chrono::seconds(60)});
      EXPECT_EQ(group.backend()->getBackendName(), "shm+gloo");
      EXPECT_EQ(group.summation_order(), SummationOrder::kHostNested);
      const at::Tensor tensor = at::full({3}, group.rank(), at::kInt);
      all_reduce(tensor, group);
      EXPECT_TRUE(at::equal(tensor, at::full({3}, 6, at::kInt)));
      EXPECT_THAT(all_gather_text(std::string(static_cast<std::size_t>(group.rank()), 'x'), group),
                  ElementsAre("", "x", "xx", "xxx"));
      barrier(group);
    });
  }
}

TEST(HierarchyWork, ReceivesFromAnyRankWhereAskedTo) {
  run({"", {0, 0, 1, 1}},
      [](c10d::Backend& backend) {
        Tensors tensors = {at::full({1}, backend.getRank(), at::kInt)};
        if (backend.getRank() != 1) {
          backend.send(tensors, 1, 3)->wait();
          return;
        }
        int sum = 0;
        for (int i = 0; i < 3; ++i) {
          const auto work = backend.recvAnysource(tensors, 3);
          work->wait();
          EXPECT_EQ(tensors[0].item<int>(), work->sourceRank());
          sum += work->sourceRank();
        }
        EXPECT_EQ(sum, 0 + 2 + 3);
      },
      {.receive_from_any = true});
}

TEST(HostMaps, NumberHostsByTheirLowestRank) {
  const HostMap hosts(std::vector<int>{9, 4, 9, 4, 4}, 0);
  EXPECT_EQ(hosts.num_hosts(), 2);
  EXPECT_THAT(hosts.members(0), ElementsAre(0, 2));
  EXPECT_THAT(hosts.members(1), ElementsAre(1, 3, 4));
  EXPECT_EQ(hosts.local_of(3), 1);
  EXPECT_EQ(hosts.num_leaders(), 2);
  EXPECT_EQ(hosts.largest_local_size(), 3);
  EXPECT_THAT(hosts.leaders(1), ElementsAre(2, 3));
  EXPECT_EQ(HostMap(std::vector<int>{9, 4, 9, 4, 4}, 1).num_leaders(), 1);
  EXPECT_THROW(HostMap(std::vector<int>{}, 0), UsageError);
  EXPECT_THROW(HostMap(std::vector<int>{0}, -1), UsageError);
}

TEST(HostMaps, ComeFromMachineIds) {
  EXPECT_THAT(hosts_of(std::vector<std::string>{"b", "a", "b"}), ElementsAre(0, 1, 0));
}

TEST(SlicesOfAMessage, GiveTheRemainderToTheLast) {
  const Slices slices(11, 3);
  EXPECT_EQ(slices.length(0), 3);
  EXPECT_EQ(slices.begin(2), 6);
  EXPECT_EQ(slices.length(2), 5);
  EXPECT_EQ(slices.in_bytes(4).begin(2), 24);
  EXPECT_EQ(slices.in_bytes(4).length(2), 20);
  EXPECT_EQ(Slices(2, 3).length(0), 0);
  EXPECT_EQ(Slices(2, 3).length(2), 2);
}

}  // namespace
}  // namespace trireme::comm
