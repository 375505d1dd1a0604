// SPDX-License-Identifier: Apache-2.0
// Random numbers on distributed tensors: the same whatever the mesh, and of the right distribution.
#include <trireme/tensor/distributed_tensor.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <gtest/gtest.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace trireme {
namespace {

using testing::run_ranks;

using Draw = std::function<torch::Tensor(torch::Tensor, at::Generator)>;

const std::map<std::string, Draw>& draws() {
  static const std::map<std::string, Draw> all = {
      {"bernoulli_",
       [](const torch::Tensor& x, const at::Generator& g) { return x.bernoulli_(0.3, g); }},
      {"bernoulli of a tensor",
       [](const torch::Tensor& x, const at::Generator& g) {
         return torch::bernoulli(torch::full_like(x, 0.25), g);
       }},
      {"uniform_",
       [](const torch::Tensor& x, const at::Generator& g) { return x.uniform_(-1, 3, g); }},
      {"normal_",
       [](const torch::Tensor& x, const at::Generator& g) { return x.normal_(1, 2, g); }},
      {"exponential_",
       [](const torch::Tensor& x, const at::Generator& g) { return x.exponential_(2, g); }},
      {"rrelu",
       [](const torch::Tensor& x, const at::Generator& g) {
         return torch::rrelu(x - 1, 0.1, 0.3, /*training=*/true, g);
       }},
  };
  return all;
}

at::Generator seeded() { return at::make_generator<at::CPUGeneratorImpl>(5); }

torch::Tensor drawn(const Draw& draw, const DeviceMesh& mesh, const Placement& placement,
                    torch::IntArrayRef sizes) {
  const std::vector<Placement> placements(static_cast<std::size_t>(mesh.num_axes()), placement);
  return full(draw(distribute(torch::zeros(sizes), Layout(mesh, placements)), seeded()));
}

TEST(RandomRules, DrawTheSameOnEveryMesh) {
  std::mutex mutex;
  std::map<std::string, torch::Tensor> of_one;
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&](const comm::Group& group) {
      const DeviceMesh mesh = ranks == 4 ? DeviceMesh(group, {{"data", 2}, {"tensor", 2}})
                                         : DeviceMesh(group, {{"tensor", ranks}});
      for (const auto& [name, draw] : draws()) {
        for (const Placement& placement : {Placement(Replicate{}), Placement(Shard{0}),
                                           Placement(Shard{1}), Placement(Shard{2})}) {
          const auto values = drawn(draw, mesh, placement, {3, 5, 2});
          const std::scoped_lock lock(mutex);
          const auto [first, is_new] = of_one.emplace(name, values);
          EXPECT_TRUE(torch::equal(values, first->second)) << name << " " << placement.to_string();
        }
      }
    });
  }
}

// Rows of 37 elements are no multiple of what is computed together.
TEST(RandomRules, DrawThePhiloxNumbersOfAnElementFromItsPlace) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const torch::Tensor x =
        distribute(torch::zeros({3, 37}, torch::kDouble), Layout(mesh, {Placement(Shard{1})}));
    const torch::Tensor all = full(x.uniform_(0, 1, seeded()));
    auto generator = seeded();
    const std::uint64_t key = at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
    for (std::int64_t element = 0; element < all.numel(); ++element) {
      at::Philox4_32 engine(key, static_cast<std::uint64_t>(element), 0);
      const std::uint64_t high = engine();
      const std::uint64_t bits = high << 32 | engine();
      EXPECT_EQ(all.flatten()[element].item<double>(), static_cast<double>(bits >> 11) * 0x1p-53)
          << element;
    }
  });
}

TEST(RandomRules, DrawFromTheirDistributions) {
  run_ranks(2, [&](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto of = [&](const char* name) {
      return drawn(draws().at(name), mesh, Shard{0}, {400, 250}).to(torch::kDouble);
    };
    // A hundred thousand numbers: the mean is right within five of its own deviations.
    EXPECT_NEAR(of("bernoulli_").mean().item<double>(), 0.3, 5 * 0.4583 / 316);
    EXPECT_NEAR(of("bernoulli of a tensor").mean().item<double>(), 0.25, 5 * 0.4331 / 316);
    const auto uniform = of("uniform_");
    EXPECT_NEAR(uniform.mean().item<double>(), 1, 5 * 1.1547 / 316);
    EXPECT_NEAR(uniform.std().item<double>(), 1.1547, 0.01);
    EXPECT_GE(uniform.min().item<double>(), -1);
    EXPECT_LT(uniform.max().item<double>(), 3);
    const auto normal = of("normal_");
    EXPECT_NEAR(normal.mean().item<double>(), 1, 5 * 2.0 / 316);
    EXPECT_NEAR(normal.std().item<double>(), 2, 0.03);
    EXPECT_NEAR(of("exponential_").mean().item<double>(), 0.5, 5 * 0.5 / 316);
    EXPECT_GE(of("exponential_").min().item<double>(), 0);
    EXPECT_NEAR(of("rrelu").mean().item<double>(), -0.2, 5 * 0.0577 / 316);
    EXPECT_GE(of("rrelu").min().item<double>(), -0.3 - 1e-6);
    // The fourth moment of a normal distribution is three.
    EXPECT_NEAR(((normal - 1) / 2).pow(4).mean().item<double>(), 3, 0.2);
  });
}

TEST(RandomRules, CallsDrawAfresh) {
  run_ranks(2, [&](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    auto generator = seeded();
    const auto tensor = distribute(torch::zeros({4, 4}), Layout(mesh, {Shard{0}}));
    const auto first = full(tensor.clone().uniform_(0, 1, generator));
    const auto second = full(tensor.clone().uniform_(0, 1, generator));
    EXPECT_FALSE(torch::equal(first, second));
  });
}

TEST(RandomRules, RreluGivesTheGradientOfTheSlopesThatItDrew) {
  run_ranks(2, [&](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto x = distribute(torch::arange(-6, 6).to(torch::kDouble), Layout(mesh, {Shard{0}}))
                       .requires_grad_();
    const auto y = torch::rrelu(x, 0.1, 0.3, /*training=*/true, seeded());
    y.sum().backward();
    EXPECT_TRUE(torch::allclose(full(y.detach()), full(x.grad() * x.detach())));
  });
}

// Dropout draws from the default generator, which threads share: one rank.
TEST(RandomRules, DropoutOfAMeshOfOneKeepsItsShare) {
  run_ranks(1, [&](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 1}});
    const auto tensor =
        distribute(torch::ones({200, 200}), Layout(mesh, {Shard{0}})).requires_grad_();
    const auto dropped = torch::dropout(tensor, 0.5, /*train=*/true);
    dropped.sum().backward();
    const auto values = full(dropped.detach());
    EXPECT_NEAR(values.mean().item<double>(), 1, 0.03);
    EXPECT_TRUE(torch::equal(full(tensor.grad()), values));
  });
}

}  // namespace
}  // namespace trireme
