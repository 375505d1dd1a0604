// SPDX-License-Identifier: Apache-2.0
// Calls of a dry run against the same calls carried out: layouts, shapes, and every collective.
#include <trireme/tensor/dry_run/dry_run.h>

#include <trireme/base/error.h>
#include <trireme/tensor/dispatch/decision_cache.h>
#include <trireme/tensor/distributed_tensor.h>

#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/tensor/sent_collectives.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using tensor::DryRun;
using tensor::DryRunCall;
using test::usage_error;
using torch::Tensor;

using Tensors = std::vector<Tensor>;

std::vector<std::string> lines_of(const std::vector<DryRunCall>& calls) {
  std::vector<std::string> lines;
  for (const DryRunCall& call : calls) lines.push_back(test::line_of(call));
  return lines;
}

// A function and the global shapes of what it takes; the first is cut in every way, the others are
// whole.
struct Case {
  std::string name;
  std::vector<Tensor> inputs;
  std::function<Tensor(const Tensors&)> function;
};

Tensor numbers(at::IntArrayRef sizes) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return torch::arange(count, torch::kDouble).mul(0.37).sin().reshape(sizes);
}

std::vector<Layout> every_cut(const DeviceMesh& mesh, std::int64_t num_dims) {
  std::vector<Placement> placements = {Replicate{}, Partial{}};
  for (std::int64_t dim = 0; dim < num_dims; ++dim) {
    placements.emplace_back(Shard{static_cast<int>(dim)});
  }
  std::vector<Layout> layouts = {Layout::replicated(mesh)};
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    std::vector<Layout> more;
    for (const Layout& layout : layouts) {
      for (const Placement& placement : placements) more.push_back(layout.with(axis, placement));
    }
    layouts = more;
  }
  return layouts;
}

// Forward and backward for every cut of the first input. Each is decided anew: gradients of
// embeddings follow the weight of that shape that was decided on last.
void go_through(const Case& test_case, const DeviceMesh& mesh) {
  for (const Layout& layout : every_cut(mesh, test_case.inputs.front().dim())) {
    tensor::forget_decisions();
    Tensors inputs;
    for (const Tensor& input : test_case.inputs) {
      const Layout chosen = inputs.empty() ? layout : Layout::replicated(mesh);
      inputs.push_back(distribute(input, chosen).detach());
      if (input.is_floating_point()) inputs.back().requires_grad_();
    }
    const Tensor result = test_case.function(inputs);
    if (result.requires_grad()) result.sum().backward();
  }
}

void expect_results(const DryRunCall& call, c10::ArrayRef<c10::IValue> results) {
  std::size_t output = 0;
  const auto compare = [&](const Tensor& result) {
    if (!result.defined() || call.outputs.empty()) return;
    ASSERT_LT(output, call.outputs.size()) << test::line_of(call);
    const auto& recorded = call.outputs[output++];
    EXPECT_EQ(layout_of(result).to_string(), recorded.layout.to_string()) << test::line_of(call);
    EXPECT_EQ(result.sizes(), c10::IntArrayRef(recorded.sizes)) << test::line_of(call);
    EXPECT_EQ(result.scalar_type(), recorded.dtype) << test::line_of(call);
  };
  for (const c10::IValue& result : results) {
    if (result.isTensor()) compare(result.toTensor());
    if (!result.isTensorList()) continue;
    for (const Tensor& element : result.toTensorVector()) compare(element);
  }
}

// Every call of the body sends what is predicted of it and gives results as predicted; and without
// ranks the same is predicted.
void expect_predicted(const std::vector<MeshAxis>& axes,
                      const std::function<void(const DeviceMesh&)>& body) {
  std::vector<std::string> alone;
  {
    const DeviceMesh mesh = DeviceMesh::unconnected(axes);
    const DryRun dry_run;
    body(mesh);
    alone = lines_of(dry_run.calls());
  }
  EXPECT_FALSE(alone.empty());
  int ranks = 1;
  for (const MeshAxis& axis : axes) ranks *= static_cast<int>(axis.size);
  testing::engine_of_ranks = "gloo";
  testing::run_ranks(ranks, [&](const comm::Group& group) {
    const DeviceMesh mesh(group, axes);
    test::SentCollectives sent(mesh);
    const DryRun beside(DryRun::Mode::kBeside,
                        [&](const DryRunCall& call, c10::ArrayRef<c10::IValue> results) {
                          // Bytes are those of the rank with the longest parts.
                          const std::vector<std::string> actual = sent.take();
                          const std::vector<std::string> expected = test::predicted(call, mesh);
                          EXPECT_EQ(actual.size(), expected.size()) << test::line_of(call);
                          if (group.rank() == 0) {
                            EXPECT_EQ(actual, expected) << test::line_of(call);
                          }
                          expect_results(call, results);
                        });
    body(mesh);
    if (group.rank() == 0) {
      EXPECT_EQ(lines_of(beside.calls()), alone);
    }
  });
}

// Operators whose rules have kernels that communicate.
std::vector<Case> cases_with_kernels() {
  const Tensor rows = numbers({5, 6});
  const Tensor images = numbers({4, 6, 3});
  const Tensor classes = torch::arange(5).remainder(6);
  const Tensor of_six = numbers({6});
  return {
      {"softmax", {rows}, [](const Tensors& in) { return torch::softmax(in[0], 1); }},
      {"log_softmax", {rows}, [](const Tensors& in) { return torch::log_softmax(in[0], 1); }},
      {"logsumexp",
       {rows},
       [](const Tensors& in) { return torch::logsumexp(in[0], {0, 1}, false); }},
      {"layer_norm",
       {images, numbers({6, 3}), numbers({6, 3})},
       [](const Tensors& in) { return torch::layer_norm(in[0], {6, 3}, in[1], in[2]); }},
      {"group_norm",
       {images, of_six, of_six},
       [](const Tensors& in) { return torch::group_norm(in[0], 3, in[1], in[2]); }},
      {"batch_norm",
       {images, of_six, of_six},
       [](const Tensors& in) {
         const Tensor mean = torch::zeros_like(in[1]);
         const Tensor variance = torch::ones_like(in[1]);
         return torch::batch_norm(in[0], in[1].detach().requires_grad_(), in[2], mean, variance,
                                  true, 0.1, 1e-5, false);
       }},
      {"cross_entropy",
       {rows, classes},
       [](const Tensors& in) { return torch::cross_entropy_loss(in[0], in[1]); }},
      {"embedding",
       {rows, torch::arange(8).remainder(5)},
       [](const Tensors& in) { return torch::embedding(in[0], in[1]); }},
      {"variance", {rows}, [](const Tensors& in) { return torch::var(in[0], {1}, true, false); }},
      {"norm", {rows}, [](const Tensors& in) { return torch::linalg_vector_norm(in[0], 2); }},
      {"foreach_norm",
       {rows, of_six},
       [](const Tensors& in) {
         return torch::stack(torch::_foreach_norm({in[0].detach(), in[1].detach()}));
       }},
      {"dist",
       {rows, rows},
       [](const Tensors& in) { return torch::dist(in[0].detach(), in[1].detach()); }},
      {"argmax", {rows}, [](const Tensors& in) { return torch::argmax(in[0], 1); }},
      {"argmax of all", {rows}, [](const Tensors& in) { return torch::argmax(in[0]); }},
      {"max", {rows}, [](const Tensors& in) { return std::get<0>(torch::max(in[0], 1)); }},
  };
}

std::vector<Case> other_cases() {
  const Tensor rows = numbers({5, 6});
  const Tensor images = numbers({4, 6, 3});
  return {
      {"sort", {rows}, [](const Tensors& in) { return std::get<0>(torch::sort(in[0], 1)); }},
      {"linear",
       {rows, numbers({4, 6}), numbers({4})},
       [](const Tensors& in) { return torch::relu(torch::linear(in[0], in[1], in[2])); }},
      {"views",
       {images},
       [](const Tensors& in) {
         return (in[0].flatten(1).t().select(0, 2) * in[0].permute({2, 1, 0}).reshape({-1, 4})[3])
             .unsqueeze(0);
       }},
      {"in place",
       {rows},
       [](const Tensors& in) {
         const Tensor own = in[0].clone();
         own.mul_(2).add_(torch::ones_like(own));
         return own.t_();
       }},
      {"lists",
       {rows},
       [](const Tensors& in) {
         const Tensors parts = in[0].split(2, 1);
         return torch::cat({parts[2], parts[0] + parts[1]}, 0);
       }},
      {"dropout", {rows}, [](const Tensors& in) { return torch::dropout(in[0], 0.5, true); }},
      {"out",
       {rows},
       [](const Tensors& in) {
         const torch::NoGradGuard no_grad;
         Tensor out = torch::empty_like(in[0]);
         torch::add_out(out, in[0], in[0]);
         Tensor grown = in[0].new_empty({0});
         torch::mul_out(grown, in[0], in[0]);
         return out + grown;
       }},
      {"hints",
       {rows},
       [](const Tensors& in) {
         const DeviceMesh mesh = layout_of(in[0]).mesh();
         const Tensor cut = shard(in[0] * 2, Layout::replicated(mesh).with(0, Shard{0}));
         return redistribute(cut, Layout::replicated(mesh));
       }},
      {"parts",
       {rows},
       [](const Tensors& in) {
         const Tensor part = to_local(in[0]);
         return from_local(part * 2, layout_of(in[0]), in[0].sizes()) + full(in[0] * 1).detach();
       }},
  };
}

class DryRunOfCalls : public ::testing::TestWithParam<std::vector<MeshAxis>> {};

TEST_P(DryRunOfCalls, IsWhatHappens) {
  std::vector<Case> cases = cases_with_kernels();
  for (Case& test_case : other_cases()) cases.push_back(std::move(test_case));
  for (const Case& test_case : cases) {
    SCOPED_TRACE(test_case.name);
    expect_predicted(GetParam(), [&](const DeviceMesh& mesh) { go_through(test_case, mesh); });
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, DryRunOfCalls,
                         ::testing::Values(std::vector<MeshAxis>{{"tensor", 3}},
                                           std::vector<MeshAxis>{{"data", 2}, {"tensor", 2}}),
                         [](const auto& param_info) {
                           return param_info.param.size() == 1 ? "Row" : "Grid";
                         });

// Half precision is reduced in float, and gradients with it.
TEST(DryRun, OfHalfPrecision) {
  expect_predicted({{"tensor", 2}}, [](const DeviceMesh& mesh) {
    const Layout columns = Layout::replicated(mesh).with(0, Shard{1});
    const Tensor x =
        distribute(numbers({4, 6}).to(torch::kBFloat16), columns).detach().requires_grad_();
    const Tensor weight = distribute(numbers({6}).to(torch::kBFloat16), Layout::replicated(mesh));
    torch::layer_norm(torch::softmax(x, 1), {6}, weight).sum().backward();
  });
}

// Calls that differ in one respect each. A dry run keeps what it finds out about a call for calls
// that are alike, and must not take any of these for another one.
std::vector<std::function<void(const DeviceMesh&)>> calls_that_differ() {
  const auto made = [](const DeviceMesh& mesh, const Tensor& values, const Placement& placement) {
    return distribute(values, Layout::replicated(mesh).with(0, placement));
  };
  return {
      [=](const DeviceMesh& mesh) { (void)made(mesh, numbers({4, 6}), Shard{0}).sum(1); },
      [=](const DeviceMesh& mesh) { (void)made(mesh, numbers({4, 6}), Shard{0}).sum(0); },
      [=](const DeviceMesh& mesh) { (void)made(mesh, numbers({4, 6}), Shard{0}).sum(1, true); },
      [=](const DeviceMesh& mesh) { (void)made(mesh, numbers({4, 6}), Shard{1}).sum(1); },
      [=](const DeviceMesh& mesh) { (void)made(mesh, numbers({4, 6}), Replicate{}).sum(1); },
      [=](const DeviceMesh& mesh) { (void)made(mesh, numbers({4, 8}), Shard{0}).sum(1); },
      [=](const DeviceMesh& mesh) { (void)made(mesh, numbers({6, 4}).t(), Shard{0}).sum(1); },
      [=](const DeviceMesh& mesh) {
        (void)made(mesh, numbers({4, 6}).to(at::kFloat), Shard{0}).sum(1);
      },
      [=](const DeviceMesh& mesh) {
        (void)made(mesh, numbers({4, 6}), Shard{0}).sum({1}, false, at::kFloat);
      },
      [=](const DeviceMesh& mesh) { (void)made(mesh, numbers({4, 6}), Shard{0}).mean(1); },
      [=](const DeviceMesh& mesh) { (void)made(mesh, numbers({4, 6}), Shard{0}).add(1); },
      [=](const DeviceMesh& mesh) { (void)made(mesh, numbers({4, 6}), Shard{0}).add(1.0); },
      [=](const DeviceMesh& mesh) {
        (void)made(mesh, numbers({4, 6}).to(at::kLong), Shard{0}).add(1);
      },
      [=](const DeviceMesh& mesh) {
        (void)made(mesh, numbers({4, 6}).to(at::kLong), Shard{0}).add(1.0);
      },
      [=](const DeviceMesh& mesh) {
        const Tensor x = made(mesh, numbers({4, 6}), Shard{0});
        (void)torch::cat({x, x}, 0);
      },
      [=](const DeviceMesh& mesh) {
        const Tensor x = made(mesh, numbers({4, 6}), Shard{0});
        (void)torch::cat({x, x, x}, 0);
      },
  };
}

TEST(DryRun, KnowsCallsThatAreAlikeFromOthers) {
  const DeviceMesh mesh = DeviceMesh::unconnected({{"tensor", 2}});
  const auto calls = calls_that_differ();
  const auto record_of = [](const DryRun& dry_run, std::size_t begin) {
    std::vector<std::string> lines;
    for (std::size_t i = begin; i < dry_run.calls().size(); ++i) {
      const DryRunCall& call = dry_run.calls()[i];
      std::string line = test::line_of(call) + " flops " + std::to_string(call.flops);
      for (const auto& output : call.outputs) {
        line += std::string(" ") + c10::toString(output.dtype) + " " + output.layout.to_string();
        for (const std::int64_t size : output.sizes) line += " " + std::to_string(size);
        for (const std::int64_t stride : output.strides) line += " by " + std::to_string(stride);
      }
      lines.push_back(line);
    }
    return lines;
  };
  const DryRun together;
  for (int pass = 0; pass < 2; ++pass) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const std::size_t begin = together.calls().size();
      calls[i](mesh);
      const std::vector<std::string> found = record_of(together, begin);
      const DryRun alone;
      calls[i](mesh);
      EXPECT_EQ(found, record_of(alone, 0)) << "call " << i << " in pass " << pass;
      EXPECT_FALSE(found.empty());
    }
  }
}

TEST(DryRun, KeepsValuesAway) {
  const DeviceMesh mesh = DeviceMesh::unconnected({{"tensor", 2}});
  const DryRun dry_run;
  const Tensor x = distribute(numbers({4, 6}), {mesh, {{"tensor", Shard{0}}}});
  EXPECT_EQ(x.sizes(), c10::IntArrayRef({4, 6}));
  EXPECT_EQ(to_local(x).sizes(), c10::IntArrayRef({2, 6}));
  EXPECT_TRUE(to_local(x).is_meta());
  const std::string item = usage_error([&] { (void)x.sum().item<double>(); });
  EXPECT_NE(item.find("aten::_local_scalar_dense"), std::string::npos) << item;
  EXPECT_NE(item.find("known only once it has run"), std::string::npos) << item;
  EXPECT_NE(usage_error([&] { (void)torch::nonzero(x); }).find("aten::nonzero"), std::string::npos);
  // Which attention asks, to see whether query and key are one tensor.
  EXPECT_TRUE(torch::equal(x, x));
  EXPECT_FALSE(torch::equal(x, x * 2));
  // What is refused takes nothing along.
  EXPECT_EQ((x * 2).sizes(), x.sizes());
}

TEST(DryRun, RefusesWhatTheCallWould) {
  const DeviceMesh mesh = DeviceMesh::unconnected({{"tensor", 2}});
  const DeviceMesh other = DeviceMesh::unconnected({{"tensor", 2}});
  const DryRun dry_run;
  const Tensor x = distribute(numbers({4, 6}), {mesh, {{"tensor", Shard{0}}}});
  const Tensor y = distribute(numbers({4, 6}), {other, {{"tensor", Shard{0}}}});
  EXPECT_NE(usage_error([&] { (void)(x + y); }).find("two meshes"), std::string::npos);
  EXPECT_NE(usage_error([&] { (void)torch::linalg_inv(x.narrow(1, 0, 4)); }).size(), 0U);
  EXPECT_NE(usage_error([&] { torch::zeros({4, 6}, torch::kDouble).add_(x); }).find("plain tensor"),
            std::string::npos);
  const Tensor plain = numbers({4, 6}).requires_grad_();
  EXPECT_NE(usage_error([&] { (void)(x * plain); }).find("requires a gradient"), std::string::npos);
}

TEST(DryRun, EndsWithItsObject) {
  const DeviceMesh mesh = DeviceMesh::unconnected({{"tensor", 2}});
  {
    const DryRun outer;
    {
      const DryRun inner;
      EXPECT_EQ(DryRun::of_thread(), &inner);
    }
    EXPECT_EQ(DryRun::of_thread(), &outer);
    // Plain tensors are computed with as ever.
    EXPECT_EQ((torch::ones({3}) + 1).sum().item<double>(), 6);
    EXPECT_TRUE(outer.calls().empty());
  }
  EXPECT_EQ(DryRun::of_thread(), nullptr);
}

}  // namespace
}  // namespace trireme
