// SPDX-License-Identifier: Apache-2.0
// Every module is compared with the same one constructed as ever, bit for bit, and so are the
// random numbers drawn afterwards. deferred_random_test.cpp has random numbers and errors.
#include <tests/unit/parallel/init/deferred_checks.h>

namespace trireme {
namespace {

using detail::is_deferred;
using detail::random_states;
using detail::replay;
using test::CountedMemory;
using test::custom;
using test::Custom;
using test::expect_alike;
using test::expect_same_values;
using test::kMiB;
using test::tensors_of;

using MakeModule = std::function<std::shared_ptr<torch::nn::Module>()>;
template <typename Module, typename... Options>
MakeModule make_of(const Options&... options) {
  return [=] { return Module(options...).ptr(); };
}

struct Case {
  std::string name;
  MakeModule make;
  bool draws = true;
};

namespace nn = torch::nn;

MakeModule tensors(const Custom::Make& make) {
  return [make] { return custom(make); };
}

std::vector<Case> modules_of_libraries() {
  return {
      {"Linear", make_of<nn::Linear>(600, 500)},
      {"Convolutions",
       [] {
         return nn::Sequential(nn::Conv2d(3, 8, 3), nn::BatchNorm2d(8),
                               nn::ConvTranspose2d(8, 4, 3))
             .ptr();
       }},
      {"LSTM", make_of<nn::LSTM>(nn::LSTMOptions(300, 200).num_layers(2).bidirectional(true))},
      {"Embedding", make_of<nn::Embedding>(nn::EmbeddingOptions(1000, 600).padding_idx(3))},
      {"Attention", make_of<nn::MultiheadAttention>(nn::MultiheadAttentionOptions(64, 4))},
      {"TransformerEncoder", make_of<nn::TransformerEncoderLayer>(
                                 nn::TransformerEncoderLayerOptions(64, 4).dim_feedforward(128))},
      {"Transformer", make_of<nn::Transformer>(nn::TransformerOptions(32, 4, 1, 1))},
      {"LayerNorm", make_of<nn::LayerNorm>(nn::LayerNormOptions({600, 600})), false},
      {"ResNet18", [] { return models::resnet18().ptr(); }},
      {"GPT",
       [] {
         return models::GPT(models::GPTOptions{.vocabulary = 5000,
                                               .sequence = 64,
                                               .hidden = 128,
                                               .layers = 2,
                                               .heads = 4,
                                               .tied = true})
             .ptr();
       }},
      {"Converted",
       [] {
         auto linear = nn::Linear(600, 500);
         linear->to(torch::kBFloat16);
         return linear.ptr();
       }},
      {"WithoutGrad",
       [] {
         const torch::NoGradGuard no_grad;
         return nn::Linear(600, 500).ptr();
       }},
  };
}

std::vector<Case> many_operators() {
  return {
      {"Scaled", tensors([](Custom& module) {
         module.parameter("small", torch::randn({30, 20}) * 0.02);
         module.parameter("large", torch::randn({600, 600}) * 0.02 + 1);
         module.parameter("uniform", torch::rand({600, 600}).mul_(2).sub_(1));
         module.parameter("full", torch::full({600, 600}, 0.3));
         module.parameter("ones", torch::ones({600, 600}) * 0.02);
         module.buffer("mask", torch::tril(torch::ones({600, 600})));
         module.buffer("infinite", torch::full({600, 600}, -INFINITY).triu(1));
         module.buffer("positions", torch::arange(300000));
         module.buffer("steps", torch::linspace(0, 1, 300000));
         module.buffer("table", torch::tensor({0.5, 0.25}));
       })},
      {"ManyOperators", tensors([](Custom& module) {
         auto a = torch::empty({700, 500});
         nn::init::orthogonal_(a);
         module.parameter("orthogonal", a);
         module.parameter("stacked",
                          torch::stack({torch::randn({500, 300}), torch::ones({500, 300})}));
         module.parameter("joined",
                          torch::cat({torch::rand({600, 300}), torch::randn({600, 300})}, 1));
         module.parameter("noisy", a.clone() + torch::randn_like(a).erfinv().nan_to_num(0));
         module.buffer("permutation", torch::randperm(300000));
         module.buffer("bernoulli", torch::bernoulli(torch::full({600, 600}, 0.3)));
         module.buffer("normal", at::normal(torch::arange(400000, torch::kFloat), 2.0));
         module.buffer("integers", torch::randint(0, 100, {400000}));
         module.buffer("half", torch::randn({800, 800}).to(torch::kHalf));
         module.buffer("complex", torch::randn({400, 400}, torch::kComplexFloat).conj());
         auto [values, indices] = torch::sort(torch::rand({600, 600}));
         module.buffer("sorted", values);
         module.buffer("indices", indices);
         auto table = torch::zeros({700, 500});
         table.index_put_({torch::randperm(700).slice(0, 0, 100)}, torch::ones({500}));
         table.select(0, 5).fill_(7);
         table.narrow(1, 20, 30).normal_();
         module.buffer("written", table);
         module.buffer("transposed", torch::randn({600, 700}).t());
         for (int i = 0; i < 8; ++i) {  // in float, though 0.1 is a double
           module.buffer("number" + std::to_string(i), torch::rand({}) * 0.1);
         }
         auto product = torch::randn({600, 600});
         torch::mul_out(product, product, torch::full({600}, 2));
         module.buffer("product", product.clone());
         product.fill_(2);  // not random any more
         module.buffer("sum", torch::full({2}, product.sum().item<float>()));
       })},
      {"Constants", tensors([](Custom& module) {
         auto ones = torch::ones({600, 600});
         ones.mul_(3);
         module.buffer("ones", ones);
         module.buffer("copy", ones.clone());
         // Operators that need values, or whose results' sizes depend on them.
         module.buffer("sum", torch::full({3}, ones.sum().item<float>()));
         module.buffer("nonzero", ones.nonzero());
         ones.fill_(torch::equal(ones, ones) ? 5 : 6);
         module.buffer("eye", torch::eye(600));
         module.buffer("frequencies", torch::fft::rfft(torch::eye(600)));
       }),
       false},
  };
}

std::vector<Case> own_modules() {
  return {
      {"Initialised", tensors([](Custom& module) {
         // As many models do: first the layers' own values, then others for all, then a scale.
         std::vector<nn::Linear> layers;
         for (int i = 0; i < 3; ++i) {
           layers.push_back(module.module("layer" + std::to_string(i), nn::Linear(600, 500)));
         }
         const torch::NoGradGuard no_grad;
         for (auto& layer : layers) {
           nn::init::xavier_normal_(layer->weight);
           nn::init::constant_(layer->bias, 0.1);
         }
         for (auto& layer : layers) layer->weight.mul_(0.5);
         layers[2]->weight.copy_(layers[0]->weight);
       })},
      {"Tied", tensors([](Custom& module) {
         auto embedding = module.module("embedding", nn::Embedding(1000, 600));
         auto head = module.module("head", nn::Linear(nn::LinearOptions(600, 1000).bias(false)));
         head->weight = head->register_parameter("shared", embedding->weight);
         module.buffer("view", embedding->weight.detach().slice(0, 10, 20));
       })},
      {"Seeded", tensors([](Custom& module) {
         module.parameter("before", torch::randn({600, 600}));
         torch::manual_seed(11);
         module.parameter("after", torch::randn({600, 600}));
         module.parameter("then", torch::randn({4}));
       })},
      {"OwnGenerator", tensors([](Custom& module) {
         auto generator = at::detail::createCPUGenerator(5);
         module.parameter("own", torch::randn({600, 600}, generator));
         module.parameter("default", torch::randn({600, 600}));
         module.parameter("again", torch::randn({600, 600}, generator));
         generator.set_current_seed(5);
         module.parameter("seeded", torch::randn({600, 600}, generator));
       })},
  };
}

std::vector<Case> cases() {
  std::vector<Case> all = modules_of_libraries();
  for (const auto& more : {many_operators(), own_modules()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

class DeferredModule : public ::testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Modules, DeferredModule, ::testing::Range(std::size_t{0}, cases().size()),
                         [](const auto& case_info) { return cases()[case_info.param].name; });

TEST_P(DeferredModule, HasTheValuesOfTheOrdinaryConstructor) {
  const Case tried = cases()[GetParam()];
  torch::manual_seed(11);
  const auto expected = tried.make();
  const torch::Tensor expected_next = torch::randn({5});

  torch::manual_seed(11);
  const auto module = deferred(tried.make);
  const auto tensors = tensors_of(*module);
  EXPECT_TRUE(std::any_of(tensors.begin(), tensors.end(), is_deferred));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    expect_alike(tensors[i], tensors_of(*expected)[i]);
  }
  EXPECT_EQ(random_states(tensors).numel() > 0, tried.draws);
  materialize(*module);
  expect_same_values(*module, *expected);
  EXPECT_TRUE(torch::equal(torch::randn({5}), expected_next));
}

TEST_P(DeferredModule, IsHandedOutTensorByTensor) {
  const Case tried = cases()[GetParam()];
  torch::manual_seed(12);
  const auto expected = tensors_of(*tried.make());
  torch::manual_seed(12);
  const auto tensors = tensors_of(*deferred(tried.make));
  std::vector<std::size_t> num_calls(tensors.size(), 0);
  std::vector<bool> was_deferred;
  for (const auto& tensor : tensors) was_deferred.push_back(is_deferred(tensor));
  replay(tensors, [&](const torch::Tensor& whole) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].is_same(whole)) continue;
      EXPECT_TRUE(torch::equal(whole, expected[i])) << "tensor " << i;
      ++num_calls[i];
    }
  });
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_FALSE(is_deferred(tensors[i]));
    EXPECT_EQ(num_calls[i] > 0, was_deferred[i]) << "tensor " << i;
    EXPECT_EQ(tensors[i].storage().nbytes() == 0, was_deferred[i]) << "tensor " << i;
  }
}

// ---- Memory ----

TEST(Deferred, NeedsNoMemoryForAModuleOfTwoGigabytes) {
  CountedMemory memory;
  const auto module = deferred([] {
    return torch::nn::Sequential(torch::nn::Linear(16384, 16384), torch::nn::Embedding(8192, 16384),
                                 torch::nn::LayerNorm(torch::nn::LayerNormOptions({8192, 16384})));
  });
  std::int64_t bytes = 0;
  for (const auto& parameter : module->parameters()) {
    bytes += static_cast<std::int64_t>(parameter.nbytes());
  }
  EXPECT_GT(bytes, std::int64_t{2} << 30);
  EXPECT_LT(memory.peak(), 4 * kMiB);
}

TEST(Deferred, ConstructsATrillionParameters) {
  CountedMemory memory;
  const auto module = deferred([] {
    torch::nn::Sequential layers;
    for (int i = 0; i < 25; ++i) layers->push_back(torch::nn::Linear(200'000, 200'000));
    return layers;
  });
  std::int64_t count = 0;
  for (const auto& parameter : module->parameters()) count += parameter.numel();
  EXPECT_GT(count, 1'000'000'000'000);
  EXPECT_LT(memory.peak(), 4 * kMiB);
}

// Each layer is drawn twice and scaled, as in the case Initialised above.
TEST(Deferred, ReplaysWithFewTensorsWhole) {
  CountedMemory memory;
  const auto module = deferred([] {
    torch::nn::Sequential layers;
    for (int i = 0; i < 8; ++i) {
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(1024, 1024).bias(false)));
    }
    const torch::NoGradGuard no_grad;
    for (auto& weight : layers->parameters()) torch::nn::init::xavier_normal_(weight);
    for (auto& weight : layers->parameters()) weight.mul_(0.5);
    for (auto& weight : layers->parameters()) weight.set_data(weight * 2);
    return layers;
  });
  int num_ready = 0;
  replay(module->parameters(), [&](const torch::Tensor& whole) {
    ++num_ready;
    EXPECT_EQ(whole.numel(), kMiB);
  });
  EXPECT_EQ(num_ready, 8);
  EXPECT_LE(memory.peak(), 9 * kMiB);
  EXPECT_LT(memory.now(), kMiB / 2);
}

TEST(Deferred, KeepsNothingOfWhatIsDroppedOrReplayed) {
  CountedMemory memory;
  const torch::Tensor source = torch::ones({600, 600});
  const std::int64_t before = memory.now();
  const auto make = [&] {
    auto linear = torch::nn::Linear(600, 600);
    const torch::NoGradGuard no_grad;
    linear->weight.add_(source);  // the record has a copy of it
    return linear;
  };
  {
    const auto dropped = deferred(make);
    EXPECT_GT(memory.now(), before + kMiB);
  }
  EXPECT_EQ(memory.now(), before);
  auto module = deferred(make);
  replay(module->parameters(), [](const torch::Tensor&) {});
  EXPECT_EQ(memory.now(), before);
}

TEST(Deferred, TakesOrdinaryTensorsAsTheyWereWhenTheyWereUsed) {
  torch::Tensor source = torch::ones({600, 600});
  auto module = deferred([&] {
    return custom([&](Custom& made) {
      made.parameter("weight", torch::zeros({600, 600}).add_(source));
      source.fill_(4);
    });
  });
  materialize(*module);
  EXPECT_TRUE(torch::equal(module->parameters()[0], torch::ones({600, 600})));
}

TEST(Deferred, FillsWhatNothingWasWrittenTo) {
  auto module = deferred([] {
    return custom([](Custom& made) {
      made.parameter("nothing", torch::empty({600, 600}));
      auto part = torch::empty({600, 600});
      part.select(0, 1).normal_();
      made.buffer("part", part);
    });
  });
  materialize(*module);
  EXPECT_EQ(module->parameters()[0].count_nonzero().item<std::int64_t>(), 0);
  EXPECT_EQ(module->buffers()[0].count_nonzero().item<std::int64_t>(), 600);
}

// ---- Parts and shared memory ----

TEST(Deferred, LeavesOtherTensorsDeferred) {
  torch::manual_seed(4);
  torch::nn::Sequential expected(torch::nn::Linear(600, 500), torch::nn::Linear(500, 600));
  torch::manual_seed(4);
  auto module = deferred([] {
    return torch::nn::Sequential(torch::nn::Linear(600, 500), torch::nn::Linear(500, 600));
  });
  materialize(*module->ptr(1));
  EXPECT_TRUE(is_deferred(module->parameters()[0]));
  expect_same_values(*module->ptr(1), *expected->ptr(1));
  materialize(*module->ptr(0));
  expect_same_values(*module, *expected);
}

TEST(Deferred, HandsOutAllTensorsThatShareMemoryAtOnce) {
  const auto weight = deferred([] { return torch::randn({600, 600}); });
  const auto row = weight.select(0, 3);
  std::vector<torch::Tensor> seen;
  replay({weight, row, weight}, [&](const torch::Tensor& whole) {
    EXPECT_EQ(weight[3][0].item<float>(), row[0].item<float>());
    seen.push_back(whole);
  });
  ASSERT_EQ(seen.size(), 3U);
  EXPECT_TRUE(seen[0].is_same(weight) && seen[1].is_same(row));
}

TEST(Deferred, LeavesMemoryThatTheCallerPutInPlace) {
  auto weight = deferred([] { return torch::randn({600, 600}); });
  torch::Tensor own = torch::full({600, 600}, 3.0F);
  replay({weight}, [&](const torch::Tensor& whole) {
    auto& storage = *whole.storage().unsafeGetStorageImpl();
    storage.set_data_ptr_noswap({own.data_ptr(), new torch::Tensor(own),
                                 [](void* tensor) { delete static_cast<torch::Tensor*>(tensor); },
                                 torch::kCPU});
  });
  EXPECT_TRUE(torch::equal(weight, own));
}

TEST(Deferred, StaysDeferredWhereTheCallerThrows) {
  torch::manual_seed(4);
  const auto expected = torch::nn::Linear(600, 600);
  torch::manual_seed(4);
  auto module = deferred([] { return torch::nn::Linear(600, 600); });
  const auto fail = [](const torch::Tensor&) { throw std::runtime_error("no"); };
  EXPECT_THROW(replay(module->parameters(), fail), std::runtime_error);
  EXPECT_FALSE(is_deferred(module->weight));
  EXPECT_TRUE(is_deferred(module->bias));
  materialize(*module);
  expect_same_values(*module, *expected);
}

TEST(Deferred, IsReplayedOnAnotherThread) {
  torch::manual_seed(4);
  const auto expected = torch::nn::Linear(600, 600);
  torch::manual_seed(4);
  auto module = deferred([] { return torch::nn::Linear(600, 600); });
  std::jthread([&] { materialize(*module); }).join();
  expect_same_values(*module, *expected);
}

TEST(Deferred, DoesNothingToOrdinaryModules) {
  auto module = torch::nn::Linear(4, 4);
  const torch::Tensor before = module->weight.clone();
  materialize(*module);
  replay(module->parameters(), [](const torch::Tensor&) { FAIL(); });
  EXPECT_TRUE(torch::equal(module->weight, before));
  EXPECT_EQ(random_states(module->parameters()).numel(), 0);
}

TEST(Deferred, IsOneWithACallWithin) {
  torch::manual_seed(4);
  const auto make = [](const auto& make_first) {
    torch::nn::Sequential both(make_first());
    both->push_back(torch::nn::Linear(500, 600));
    return both;
  };
  const auto make_first = [] { return torch::nn::Linear(600, 500); };
  auto expected = make(make_first);
  torch::manual_seed(4);
  auto module = deferred([&] { return make([&] { return deferred(make_first); }); });
  materialize(*module);
  expect_same_values(*module, *expected);
}

}  // namespace
}  // namespace trireme
