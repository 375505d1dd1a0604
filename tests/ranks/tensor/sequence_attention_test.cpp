// SPDX-License-Identifier: Apache-2.0
// Attention whose queries, keys and values are sharded along the sequence: by a ring, by heads and
// by gathering, against one process. Memory of the ring, and the choice between the three.
#include <trireme/base/error.h>
#include <trireme/tensor/axis_links.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/tensor/dry_run/dry_run.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/close_tensors.h>
#include <tests/ranks/tensor/sent_collectives.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace trireme {
namespace {

using test::usage_error;
using ::testing::AllOf;
using testing::expect_close;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::random_tensor;
using testing::run_ranks;
using Tensors = std::vector<torch::Tensor>;

struct Case {
  std::string name;
  std::vector<std::int64_t> query;  // [batch, heads, sequence, features]
  std::vector<std::int64_t> key;
  bool is_causal = false;
  std::optional<double> scale = std::nullopt;
  torch::Tensor mask = {};
};

torch::Tensor with_infinity(const torch::Tensor& is_hidden) {
  return torch::zeros(is_hidden.sizes(), torch::kDouble)
      .masked_fill(is_hidden, -std::numeric_limits<double>::infinity());
}

// Rows 0 and 1 see only late keys, row 2 none, and the last row only the first key.
torch::Tensor sparse_mask(std::int64_t rows, std::int64_t keys) {
  auto is_hidden = torch::zeros({rows, keys}, torch::kBool);
  is_hidden.slice(0, 0, 2).slice(1, 0, keys - 2).fill_(true);
  is_hidden[2].fill_(true);
  is_hidden[rows - 1].slice(0, 1).fill_(true);
  return is_hidden;
}

std::vector<Case> cases() {
  return {
      {"without a mask", {2, 4, 12, 8}, {2, 4, 12, 8}},
      {"causal", {2, 4, 12, 8}, {2, 4, 12, 8}, true},
      {"uneven", {1, 4, 11, 4}, {1, 4, 11, 4}, true, 0.3},
      {"fewer than ranks", {1, 4, 3, 4}, {1, 4, 3, 4}, true},
      {"grouped queries", {2, 4, 10, 8}, {2, 2, 10, 8}, true},
      {"more keys", {1, 4, 5, 4}, {1, 4, 9, 4}},
      {"more keys, causal", {1, 4, 5, 4}, {1, 4, 9, 4}, true},
      {"more queries, causal", {1, 4, 9, 4}, {1, 4, 5, 4}, true},
      {"bias", {2, 4, 7, 4}, {2, 4, 7, 4}, false, 0.7, random_tensor({7, 7}, torch::kDouble, 7)},
      {"bias of heads",
       {2, 4, 7, 4},
       {2, 4, 7, 4},
       false,
       std::nullopt,
       random_tensor({1, 4, 7, 7}, torch::kDouble, 8)},
      {"padding",
       {2, 4, 7, 4},
       {2, 4, 7, 4},
       false,
       std::nullopt,
       with_infinity(torch::arange(14).reshape({2, 1, 1, 7}) % 7 > 4)},
      {"rows that see nothing",
       {1, 4, 9, 4},
       {1, 4, 9, 4},
       false,
       std::nullopt,
       with_infinity(sparse_mask(9, 9))},
      {"bool", {1, 4, 9, 4}, {1, 4, 9, 4}, false, std::nullopt, ~sparse_mask(9, 9)},
  };
}

torch::Tensor attention(const Tensors& in, const Case& one) {
  std::optional<torch::Tensor> mask;
  if (one.mask.defined()) {
    mask = one.mask.scalar_type() == torch::kBool ? one.mask : one.mask.to(in[0].scalar_type());
  }
  return torch::scaled_dot_product_attention(in[0], in[1], in[2], mask, 0.0, one.is_causal,
                                             one.scale, one.query[1] != one.key[1]);
}

Tensors inputs_of(const Case& one, torch::ScalarType type) {
  return {random_tensor(one.query, type, 1), random_tensor(one.key, type, 2),
          random_tensor(one.key, type, 3), random_tensor(one.query, type, 4)};
}

// The output, and the gradients of queries, keys and values where `in[3]` is that of the output.
Tensors run(const Case& one, Tensors in) {
  for (std::size_t i = 0; i < 3; ++i) in[i].requires_grad_(true);
  const auto output = attention(in, one);
  output.backward(in[3]);
  return {output.detach(), in[0].grad(), in[1].grad(), in[2].grad()};
}

void expect_same(const Case& one, const DeviceMesh& mesh, const Layout& layout,
                 torch::ScalarType type, double bound, const std::string& how) {
  const Tensors in = inputs_of(one, type);
  Tensors plain, distributed;
  for (const auto& tensor : in) {
    plain.push_back(tensor.clone());
    distributed.push_back(distribute(tensor, layout));
  }
  const Tensors expected = run(one, plain);
  const Tensors got = run(one, distributed);
  static const char* const names[] = {"output", "query", "key", "value"};
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::string what =
        join_message(one.name, " ", how, " of ", mesh.to_string(), ": ", names[i]);
    const SequenceAttention choice = tensor::sequence_attention(*mesh.state());
    if (choice == SequenceAttention::kRing || choice == SequenceAttention::kHeads) {
      EXPECT_EQ(layout_of(got[i]).to_string(), layout.to_string()) << what;
    }
    expect_close(full(got[i]), expected[i], bound, what);
  }
}

// The heads of keys and queries can be divided over ranks.
bool has_heads_for(const Case& one, int ranks) {
  return one.query[1] == one.key[1] ? one.key[1] >= ranks : one.key[1] % ranks == 0;
}

class InEveryWay : public ::testing::TestWithParam<SequenceAttention> {};

TEST_P(InEveryWay, EqualsOneProcess) {
  for (const int ranks : {2, 3, 4}) {
    run_ranks(ranks, [&](const comm::Group& group) {
      const DeviceMesh mesh(group, {{"context", ranks}});
      tensor::set_sequence_attention(mesh, GetParam());
      const Layout layout(mesh, {Shard{2}});
      for (const Case& one : cases()) {
        if (GetParam() == SequenceAttention::kHeads && !has_heads_for(one, ranks)) continue;
        expect_same(one, mesh, layout, torch::kDouble, 1e-13, "in double precision");
        expect_same(one, mesh, layout, torch::kFloat, 2e-6, "in single precision");
      }
    });
  }
}

std::string name_of_choice(const ::testing::TestParamInfo<SequenceAttention>& test) {
  static const char* const names[] = {"Cheapest", "Ring", "Heads", "Gather"};
  return names[static_cast<std::size_t>(test.param)];
}

INSTANTIATE_TEST_SUITE_P(Choices, InEveryWay,
                         ::testing::Values(SequenceAttention::kCheapest, SequenceAttention::kRing,
                                           SequenceAttention::kHeads, SequenceAttention::kGather),
                         name_of_choice);

TEST(SequenceAttention, TakesHalfPrecision) {
  run_ranks(3, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"context", 3}});
    for (const auto choice : {SequenceAttention::kRing, SequenceAttention::kHeads}) {
      tensor::set_sequence_attention(mesh, choice);
      expect_same({"bf16", {2, 4, 12, 8}, {2, 4, 12, 8}, true}, mesh, Layout(mesh, {Shard{2}}),
                  torch::kBFloat16, 2e-2, "in half precision");
    }
  });
}

TEST(SequenceAttention, BesideHeadsAndSequencesOnAnotherAxis) {
  run_ranks(4, [](const comm::Group& group) {
    for (const bool is_first : {false, true}) {
      const DeviceMesh mesh(group, is_first ? std::vector<MeshAxis>{{"context", 2}, {"tensor", 2}}
                                            : std::vector<MeshAxis>{{"tensor", 2}, {"context", 2}});
      for (const auto choice :
           {SequenceAttention::kCheapest, SequenceAttention::kRing, SequenceAttention::kHeads}) {
        tensor::set_sequence_attention(mesh, choice);
        for (const int dim : {0, 1, 2}) {
          const Layout layout(mesh, {{"context", Shard{2}}, {"tensor", Shard{dim}}});
          for (const Case& one : cases()) {
            // Two axes shard the sequence, so that one of them gathers keys, and may choose another
            // layout for gradients.
            if (dim == 2 || one.query[1] != one.key[1]) continue;
            expect_same(one, mesh, layout, torch::kDouble, 1e-13, "on two axes");
          }
        }
      }
    }
  });
}

TEST(SequenceAttention, OfTwoAxesThatShardOneSequence) {
  run_ranks(4, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"outer", 2}, {"inner", 2}});
    const Layout layout(mesh, {Shard{2, 0}, Shard{2, 1}});
    for (const Case& one : cases()) {
      const Tensors in = inputs_of(one, torch::kDouble);
      Tensors plain, distributed;
      for (const auto& tensor : in) {
        plain.push_back(tensor.clone());
        distributed.push_back(distribute(tensor, layout));
      }
      const Tensors expected = run(one, plain);
      const Tensors got = run(one, distributed);
      for (std::size_t i = 0; i < got.size(); ++i) {
        expect_close(full(got[i]), expected[i], 1e-13, one.name);
      }
    }
  });
}

// Dropout is drawn by position: attention with it is products and a softmax, whose layouts follow.
// The ranks of this process share one generator, so that only one of them may draw: a dry run.
TEST(SequenceAttention, WithDropoutIsProductsOfGatheredKeys) {
  const DeviceMesh mesh = DeviceMesh::unconnected({{"context", 2}});
  tensor::DryRun dry_run;
  const auto x =
      from_local(torch::empty({1, 2, 3, 4}, torch::kMeta), Layout(mesh, {Shard{2}}), {1, 2, 6, 4});
  const auto output = torch::scaled_dot_product_attention(x, x, x, {}, 0.5, true);
  EXPECT_EQ(layout_of(output), Layout(mesh, {Shard{2}}));
  std::string names;
  for (const tensor::DryRunCall& call : dry_run.calls()) names += call.name + " ";
  EXPECT_THAT(names, AllOf(HasSubstr("softmax"), HasSubstr("bernoulli"), Not(HasSubstr("flash"))));
}

TEST(SequenceAttention, RefusesHeadsThatCannotBeDivided) {
  run_ranks(3, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"context", 3}});
    tensor::set_sequence_attention(mesh, SequenceAttention::kHeads);
    const Layout layout(mesh, {Shard{2}});
    const auto query = distribute(random_tensor({1, 4, 6, 4}, torch::kDouble, 1), layout);
    const auto key = distribute(random_tensor({1, 2, 6, 4}, torch::kDouble, 2), layout);
    EXPECT_THAT(usage_error([&] {
                  return torch::scaled_dot_product_attention(query, key, key, {}, 0.0, true, {},
                                                             /*enable_gqa=*/true);
                }),
                AllOf(HasSubstr("along axis context of 3 ranks"), HasSubstr("[1, 4, 6, 4]"),
                      HasSubstr("[1, 2, 6, 4]"), HasSubstr("2 heads"), HasSubstr("kRing")));
  });
}

TEST(SequenceAttention, RunsOverEveryEngine) {
  for (const char* engine : {"threads", "gloo", "shm"}) {
    testing::engine_of_ranks = engine;
    run_ranks(3, [](const comm::Group& group) {
      const DeviceMesh mesh(group, {{"context", 3}});
      const Case one = {"long messages", {1, 4, 600, 32}, {1, 4, 600, 32}, true};
      for (const auto choice : {SequenceAttention::kRing, SequenceAttention::kHeads}) {
        tensor::set_sequence_attention(mesh, choice);
        expect_same(one, mesh, Layout(mesh, {Shard{2}}), torch::kFloat, 2e-5, group.engine());
      }
    });
  }
}

TEST(SequenceAttention, EndsWhereARankIsMissing) {
  const auto thrown = testing::run_ranks_catching(
      3,
      [](const comm::Group& group) {
        const DeviceMesh mesh(group, {{"context", 3}});
        tensor::set_sequence_attention(mesh, SequenceAttention::kRing);
        const auto x =
            distribute(random_tensor({1, 2, 6, 4}, torch::kDouble, 1), Layout(mesh, {Shard{2}}));
        if (group.rank() == 1) return;
        torch::scaled_dot_product_attention(x, x, x);
      },
      std::chrono::seconds(2));
  EXPECT_FALSE(thrown[1]);
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_THAT(testing::message_of<CommError>(thrown[rank]), HasSubstr("rank 1")) << rank;
  }
}

// The largest number of bytes that LibTorch holds for tensors during `call`, beyond those before.
template <typename Call>
std::int64_t peak_of(const Call& call) {
  struct Reports : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void* /*memory*/, std::int64_t size, std::size_t /*total*/,
                           std::size_t /*reserved*/, c10::Device /*device*/) override {
      const std::lock_guard lock(mutex);
      bytes += size;
      peak = std::max(peak, bytes);
    }
    bool memoryProfilingEnabled() const override { return true; }
    std::mutex mutex;
    std::int64_t bytes = 0;
    std::int64_t peak = 0;
  };
  const auto reports = std::make_shared<Reports>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, reports);
  call();
  return reports->peak;
}

std::int64_t peak_bytes(int ranks, std::int64_t sequence, SequenceAttention choice) {
  std::int64_t most = 0;
  std::mutex mutex;
  run_ranks(ranks, [&](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"context", ranks}});
    tensor::set_sequence_attention(mesh, choice);
    const Layout layout(mesh, {Shard{2}});
    const auto part = torch::ones({1, 4, sequence / ranks, 64});
    const auto x = from_local(part, layout).requires_grad_(true);
    const auto step = [&] {
      torch::scaled_dot_product_attention(x, x, x, {}, 0.0, true).sum().backward();
    };
    step();  // decides
    x.mutable_grad() = torch::Tensor();
    const std::int64_t peak = peak_of(step);
    const std::lock_guard lock(mutex);
    most = std::max(most, peak);
  });
  return most;
}

TEST(SequenceAttention, RingTakesMemoryOfOnePart) {
  const std::int64_t of_four = peak_bytes(4, 1024, SequenceAttention::kRing);
  const std::int64_t of_eight = peak_bytes(8, 2048, SequenceAttention::kRing);
  EXPECT_LT(static_cast<double>(of_eight), 1.35 * static_cast<double>(of_four));
  EXPECT_GT(static_cast<double>(peak_bytes(8, 2048, SequenceAttention::kGather)),
            1.5 * static_cast<double>(peak_bytes(4, 1024, SequenceAttention::kGather)));
  EXPECT_LT(of_eight, peak_bytes(8, 2048, SequenceAttention::kGather));
}

struct Circumstances {
  Link link = {};
  double flops = 0;  // of a device; 0: not known
  bool is_backward = false;
};

// What attention of [1, heads, 4096, 64] sends, by a dry run.
std::vector<std::string> sent(std::int64_t ranks, std::int64_t heads, std::int64_t key_heads,
                              bool is_causal, const Circumstances& given = {}) {
  const DeviceMesh mesh = DeviceMesh::unconnected({{"context", ranks}});
  cluster::CollectiveLinks links;
  for (const auto kind : {Collective::kAllGather, Collective::kAllToAll, Collective::kReduceScatter,
                          Collective::kAllReduce}) {
    links.set(kind, given.link);
  }
  links.attention = cluster::AttentionRate{.float32 = given.flops};
  tensor::set_axis_links(mesh, {links});
  tensor::DryRun dry_run;
  const auto part = [&](std::int64_t of_heads) {
    const auto local = torch::empty({1, of_heads, 4096 / ranks, 64}, torch::kMeta);
    return from_local(local, Layout(mesh, {Shard{2}}), {1, of_heads, 4096, 64})
        .requires_grad_(true);
  };
  const auto output = torch::scaled_dot_product_attention(
      part(heads), part(key_heads), part(key_heads), {}, 0.0, is_causal, {}, heads != key_heads);
  output.backward(part(heads).detach());
  for (const tensor::DryRunCall& call : dry_run.calls()) {
    if (call.name.find("flash_attention") == std::string::npos) continue;
    if (call.name.ends_with("_backward") != given.is_backward) continue;
    EXPECT_EQ(call.outputs[0].layout, Layout(mesh, {Shard{2}})) << test::line_of(call);
    return test::predicted(call, mesh);
  }
  return {"no attention"};
}

TEST(SequenceAttention, ChoosesByTime) {
  using ::testing::Contains;
  using ::testing::Each;
  const auto ring = Each(HasSubstr("all-gather"));
  const auto heads = Each(HasSubstr("all-to-all"));
  // Without a mask, messages of the ring travel while blocks are computed.
  EXPECT_THAT(sent(2, 8, 8, false), ring);
  EXPECT_THAT(sent(2, 8, 8, false, {.is_backward = true}),
              AllOf(Contains(HasSubstr("all-gather")), Contains(HasSubstr("reduce-scatter"))));
  // Under a causal mask, heads share the work equally.
  EXPECT_THAT(sent(2, 8, 8, true), heads);
  EXPECT_THAT(sent(2, 8, 8, true, {.is_backward = true}), heads);
  // Two heads cannot be divided over four ranks, nor two heads of keys.
  EXPECT_THAT(sent(4, 2, 2, true), ring);
  EXPECT_THAT(sent(4, 8, 2, true), ring);
  // Devices so fast that messages count: by heads each rank sends a quarter.
  EXPECT_THAT(sent(8, 8, 8, false, {.flops = 1e15}), heads);
  // Few heads of keys are little to send.
  EXPECT_THAT(sent(8, 32, 8, false, {.flops = 1e15}), ring);
  // Where messages take long whatever their size, few are best.
  EXPECT_THAT(sent(4, 8, 8, true, {.link = Link{.latency = 1, .bytes_per_second = 1e12}}), ring);
}

}  // namespace
}  // namespace trireme
