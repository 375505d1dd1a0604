// SPDX-License-Identifier: Apache-2.0
// Every module is compared with the same one constructed as ever, bit for bit, and so are the
// random numbers drawn afterwards.
#include <trireme/parallel/sharded/deferred.h>

#include <models/gpt.h>
#include <models/resnet.h>
#include <trireme/base/error.h>

#include <ATen/ThreadLocalState.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using detail::is_deferred;
using detail::random_states;
using detail::replay;
using detail::set_random_states;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// Bytes that this thread allocated by LibTorch's allocator and has not given back.
class CountedMemory {
 public:
  CountedMemory() : guard_(c10::DebugInfoKind::PROFILER_STATE, counts_) {}

  std::int64_t now() const { return counts_->now; }
  std::int64_t peak() const { return counts_->peak; }
  void forget_peak() { counts_->peak = counts_->now; }

 private:
  struct Counts final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t,
                           c10::Device) override {
      now += bytes;
      peak = std::max(peak, now);
    }
    bool memoryProfilingEnabled() const override { return true; }
    std::int64_t now = 0;
    std::int64_t peak = 0;
  };
  std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
  c10::DebugInfoGuard guard_;
};

std::vector<torch::Tensor> tensors_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> tensors = module.parameters();
  for (const torch::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  return tensors;
}

void expect_alike(const torch::Tensor& got, const torch::Tensor& expected) {
  EXPECT_EQ(got.sizes(), expected.sizes());
  EXPECT_EQ(got.strides(), expected.strides());
  EXPECT_EQ(got.dtype(), expected.dtype());
  EXPECT_EQ(got.device(), expected.device());
  EXPECT_EQ(got.requires_grad(), expected.requires_grad());
  EXPECT_EQ(got.is_leaf(), expected.is_leaf());
  EXPECT_EQ(got.storage_offset(), expected.storage_offset());
}

void expect_same_values(const torch::nn::Module& got, const torch::nn::Module& expected) {
  const auto got_tensors = tensors_of(got);
  const auto expected_tensors = tensors_of(expected);
  ASSERT_EQ(got_tensors.size(), expected_tensors.size());
  for (std::size_t i = 0; i < got_tensors.size(); ++i) {
    expect_alike(got_tensors[i], expected_tensors[i]);
    EXPECT_FALSE(is_deferred(got_tensors[i]));
    EXPECT_TRUE(torch::equal(got_tensors[i], expected_tensors[i])) << "tensor " << i;
    EXPECT_EQ(got_tensors[i]._version(), expected_tensors[i]._version()) << "tensor " << i;
  }
}

// A module from any code that makes its tensors.
struct Custom : torch::nn::Module {
  using Make = std::function<void(Custom&)>;
  explicit Custom(const Make& make) { make(*this); }
  torch::Tensor parameter(const std::string& name, const torch::Tensor& value) {
    return register_parameter(name, value);
  }
  torch::Tensor buffer(const std::string& name, const torch::Tensor& value) {
    return register_buffer(name, value);
  }
  template <typename Holder>
  Holder module(const std::string& name, const Holder& holder) {
    return register_module(name, holder);
  }
};

std::shared_ptr<Custom> custom(const Custom::Make& make) { return std::make_shared<Custom>(make); }

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

// ---- Random numbers ----

torch::nn::Linear make_linear() { return torch::nn::Linear(600, 500); }

TEST(DeferredRandom, ModulesInARowAreAsEverInWhateverOrderTheyAreReplayed) {
  torch::manual_seed(7);
  const std::vector<torch::nn::Linear> expected = {make_linear(), make_linear(), make_linear()};
  const torch::Tensor expected_next = torch::randn({5});
  for (const auto& order : {std::vector<std::size_t>{0, 1, 2}, {2, 0, 1}, {1, 2, 0}}) {
    torch::manual_seed(7);
    std::vector<torch::nn::Linear> modules;
    for (int i = 0; i < 3; ++i) modules.push_back(deferred(make_linear));
    for (const std::size_t i : order) materialize(*modules[i]);
    for (std::size_t i = 0; i < 3; ++i) expect_same_values(*modules[i], *expected[i]);
    EXPECT_TRUE(torch::equal(torch::randn({5}), expected_next));
  }
}

TEST(DeferredRandom, TheSameSeedGivesTheSameModule) {
  std::vector<torch::nn::Linear> modules;
  for (int i = 0; i < 2; ++i) {
    torch::manual_seed(7);
    modules.push_back(deferred(make_linear));
  }
  for (auto& module : modules) materialize(*module);
  expect_same_values(*modules[0], *modules[1]);
}

TEST(DeferredRandom, ASeedSetInBetweenStays) {
  torch::manual_seed(7);
  auto module = deferred(make_linear);
  torch::manual_seed(7);
  materialize(*module);
  const torch::Tensor next = torch::randn({5});
  torch::manual_seed(7);
  EXPECT_TRUE(torch::equal(next, torch::randn({5})));
}

TEST(DeferredRandom, NumbersDrawnInBetweenAreOthersAndRepeat) {
  std::vector<torch::Tensor> drawn;
  for (int i = 0; i < 2; ++i) {
    torch::manual_seed(7);
    auto module = deferred([] { return torch::randn({5}); });
    drawn.push_back(torch::randn({5}));
    const torch::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
    materialize({module});
    EXPECT_FALSE(torch::equal(module, drawn.back()));
    EXPECT_TRUE(torch::equal(state, at::detail::getDefaultCPUGenerator().get_state()));
  }
  EXPECT_FALSE(torch::equal(drawn[0], torch::zeros({5})));
}

TEST(DeferredRandom, ADroppedModuleIsForgotten) {
  torch::manual_seed(7);
  {
    auto dropped = deferred(make_linear);
  }
  auto module = deferred(make_linear);
  materialize(*module);
  torch::manual_seed(7);
  EXPECT_FALSE(torch::equal(make_linear()->weight, module->weight));
}

TEST(DeferredRandom, AModuleWithoutRandomNumbersLeavesTheGenerator) {
  torch::manual_seed(7);
  const torch::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  const auto module = deferred([] { return torch::ones({600, 600}); });
  EXPECT_TRUE(torch::equal(before, at::detail::getDefaultCPUGenerator().get_state()));
  materialize({module});
  EXPECT_TRUE(torch::equal(before, at::detail::getDefaultCPUGenerator().get_state()));
}

TEST(DeferredRandom, StatesOfAnotherRankGiveItsValues) {
  std::uint64_t seed = 7;
  const auto make = [&seed] {
    return custom([&seed](Custom& module) {
      module.parameter("first", torch::randn({600, 600}));
      torch::manual_seed(seed + 1);
      module.parameter("second", torch::randn({600, 600}));
    });
  };
  torch::manual_seed(7);
  const auto expected = make();
  torch::manual_seed(7);
  const auto first = deferred(make);
  seed = 8;
  torch::manual_seed(seed);
  auto other = deferred(make);
  const torch::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  set_random_states(other->parameters(), random_states(first->parameters()));
  materialize(*other);
  expect_same_values(*other, *expected);
  EXPECT_TRUE(torch::equal(before, at::detail::getDefaultCPUGenerator().get_state()));
}

TEST(DeferredRandom, OwnStatesSetAgainChangeNothing) {
  torch::manual_seed(7);
  const auto expected = make_linear();
  const torch::Tensor expected_next = torch::randn({5});
  torch::manual_seed(7);
  auto module = deferred(make_linear);
  set_random_states(module->parameters(), random_states(module->parameters()));
  materialize(*module);
  expect_same_values(*module, *expected);
  EXPECT_TRUE(torch::equal(torch::randn({5}), expected_next));
}

TEST(DeferredRandom, ThreadsDoNotDisturbEachOther) {
  const auto make = [](std::uint64_t seed) {
    auto generator = at::detail::createCPUGenerator(seed);
    return torch::randn({600, 600}, generator) + torch::randn({600, 600}, generator);
  };
  std::vector<torch::Tensor> made(4);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < made.size(); ++i) {
      threads.emplace_back([&, i] {
        made[i] = deferred([&] { return make(i); });
        materialize({made[i]});
      });
    }
  }
  for (std::size_t i = 0; i < made.size(); ++i) EXPECT_TRUE(torch::equal(made[i], make(i)));
}

TEST(Deferred, OtherThreadsThatInheritTheStateRunAsEver) {
  const auto tensor = deferred([] {
    torch::Tensor made;
    const at::ThreadLocalState here;
    std::jthread([&] {
      const at::ThreadLocalStateGuard as_there(here);
      made = torch::ones({600, 600});
    }).join();
    return made;
  });
  EXPECT_FALSE(is_deferred(tensor));
  EXPECT_EQ(tensor.sum().item<float>(), 600 * 600);
}

TEST(DeferredRandom, AnExistingTensorIsFilledLater) {
  const torch::Tensor expected = torch::ones({600, 600});
  torch::manual_seed(7);
  expected.select(0, 2).normal_();
  const torch::Tensor existing = torch::ones({600, 600});
  torch::manual_seed(7);
  deferred([&] { return existing.select(0, 2).normal_(); });
  EXPECT_TRUE(is_deferred(existing));
  materialize({existing});
  EXPECT_TRUE(torch::equal(existing, expected));
}

// ---- What is refused ----

template <typename Error = UsageError>
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST(DeferredErrors, AConstructorThatReadsRandomValues) {
  EXPECT_THAT(error_of([] {
                deferred([] {
                  auto linear = torch::nn::Linear(600, 600);
                  if (linear->weight.sum().item<float>() > 0) linear->weight.detach().neg_();
                  return linear;
                });
              }),
              AllOf(HasSubstr("aten::_local_scalar_dense"), HasSubstr("filled at random"),
                    HasSubstr("without deferred()")));
  EXPECT_THAT(error_of([] { deferred([] { return torch::rand({20}).gt(0.5).nonzero(); }); }),
              HasSubstr("aten::nonzero"));
  EXPECT_THAT(error_of([] { deferred([] { return torch::multinomial(torch::ones({20}), 3); }); }),
              AllOf(HasSubstr("aten::multinomial"), HasSubstr("cannot be recorded")));
  EXPECT_THAT(error_of([] {
                deferred([] {
                  auto out = torch::empty({0}, torch::kLong);
                  return torch::randperm_out(out, 20);
                });
              }),
              AllOf(HasSubstr("aten::randperm"), HasSubstr("cannot be recorded")));
}

TEST(DeferredErrors, AnErrorOfTheConstructorItself) {
  EXPECT_THAT(error_of<c10::Error>(
                  [] { deferred([] { return torch::ones({600, 600}) + torch::ones({5}); }); }),
              HasSubstr("must match the size of tensor b"));
  EXPECT_THAT(error_of([] { deferred([] { return torch::rand({600, 600}) + torch::ones({5}); }); }),
              HasSubstr("must match the size of tensor b"));
}

TEST(DeferredErrors, AConstructorThatFillsThroughAPointer) {
  EXPECT_THAT(error_of<c10::Error>([] {
                deferred([] {
                  auto table = torch::empty({600, 600});
                  table.accessor<float, 2>()[0][0] = 1;
                  return table;
                });
              }),
              AllOf(HasSubstr("through its pointer"), HasSubstr("without deferred()")));
}

TEST(DeferredErrors, UseBeforeThereIsMemory) {
  auto module = deferred(make_linear);
  for (const std::function<void()>& use : std::vector<std::function<void()>>{
           [&] { module->forward(torch::ones({2, 600})); },
           [&] { module->weight.sum().item<float>(); }, [&] { module->weight.detach().zero_(); },
           [&] { module->weight.data_ptr(); }, [&] { module->clone(); },
           [&] { module->to(torch::kDouble); }}) {
    EXPECT_THAT(error_of<c10::Error>(use),
                AllOf(HasSubstr("has no memory yet"), HasSubstr("trireme::materialize")));
  }
  materialize(*module);
  EXPECT_EQ(module->forward(torch::ones({2, 600})).size(1), 500);
}

TEST(DeferredErrors, ValuesFromAnotherCall) {
  const auto first = deferred([] { return torch::randn({600, 600}); });
  EXPECT_THAT(error_of([&] { deferred([&] { return first * 2; }); }),
              AllOf(HasSubstr("aten::mul"), HasSubstr("another call of deferred()")));
  EXPECT_THAT(error_of([&] { deferred([&] { return first.view({-1}).normal_(); }); }),
              HasSubstr("aten::normal_"));
  const auto shared = deferred([&] { return first.view({-1}); });
  materialize({first});
  EXPECT_FALSE(is_deferred(shared));
}

TEST(DeferredErrors, RandomNumbersForMemoryThatIsNotLibTorchs) {
  std::vector<float> memory(360'000, 1);
  const torch::Tensor tensor = torch::from_blob(memory.data(), {600, 600});
  EXPECT_THAT(error_of([&] { deferred([&] { return tensor.normal_(); }); }),
              AllOf(HasSubstr("aten::normal_"), HasSubstr("[600, 600]")));
  EXPECT_EQ(tensor.sum().item<float>(), 360'000);
}

TEST(DeferredErrors, StatesOfAnotherModule) {
  const auto module = deferred(make_linear);
  EXPECT_THAT(error_of([&] { set_random_states(module->parameters(), torch::empty({3})); }),
              AllOf(HasSubstr("got 3 bytes"), HasSubstr("the same module")));
}

TEST(DeferredErrors, AConstructorThatThrowsLeavesNothing) {
  CountedMemory memory;
  torch::manual_seed(7);
  const torch::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  torch::Tensor survivor;
  const std::int64_t bytes = memory.now();
  EXPECT_THROW(deferred([&]() -> torch::nn::Linear {
                 auto linear = make_linear();
                 survivor = linear->weight;
                 throw std::runtime_error("no");
               }),
               std::runtime_error);
  EXPECT_TRUE(torch::equal(before, at::detail::getDefaultCPUGenerator().get_state()));
  EXPECT_FALSE(is_deferred(torch::randn({600, 600})));
  materialize({survivor});
  torch::manual_seed(7);
  EXPECT_TRUE(torch::equal(survivor, make_linear()->weight));
  survivor.reset();
  EXPECT_EQ(memory.now(), bytes);
}

}  // namespace
}  // namespace trireme
