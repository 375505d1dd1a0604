// SPDX-License-Identifier: Apache-2.0
// The random numbers of deferred construction, and what it refuses.
#include <tests/unit/parallel/init/deferred_checks.h>

namespace trireme {
namespace {

using detail::is_deferred;
using detail::random_states;
using detail::set_random_states;
using test::CountedMemory;
using test::custom;
using test::Custom;
using test::expect_same_values;
using ::testing::AllOf;
using ::testing::HasSubstr;

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

TEST(DeferredRandom, NumbersDrawnInBetweenAreOthersEachTime) {
  torch::manual_seed(7);
  const torch::Tensor expected = torch::randn({5});
  std::vector<torch::Tensor> others = {expected, torch::randn({5})};
  for (int i = 0; i < 2; ++i) {
    torch::manual_seed(7);
    auto module = deferred([] { return torch::randn({5}); });
    const torch::Tensor drawn = torch::randn({5});
    for (const torch::Tensor& other : others) EXPECT_FALSE(torch::equal(drawn, other));
    others.push_back(drawn);
    const torch::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
    materialize({module});
    EXPECT_TRUE(torch::equal(module, expected));
    EXPECT_TRUE(torch::equal(state, at::detail::getDefaultCPUGenerator().get_state()));
  }
}

// A constructor that draws between reading a generator's state and putting it back.
std::shared_ptr<Custom> make_with_state(bool draws_before) {
  return custom([&](Custom& module) {
    auto generator = at::detail::getDefaultCPUGenerator();
    if (draws_before) module.parameter("before", torch::randn({600, 600}));
    const torch::Tensor state = generator.get_state();
    module.parameter("first", torch::randn({600, 600}));
    generator.set_state(state);
    module.parameter("second", torch::randn({600, 600}));
  });
}

TEST(DeferredRandom, AStateReadBeforeTheFirstDrawIsPutBack) {
  const auto make = [] { return make_with_state(false); };
  torch::manual_seed(7);
  const std::vector<std::shared_ptr<Custom>> expected = {make(), make()};
  const torch::Tensor expected_next = torch::randn({5});
  torch::manual_seed(7);
  auto first = deferred(make);
  auto second = deferred(make);  // starts where the first ends, twice
  materialize(*second);
  materialize(*first);
  expect_same_values(*first, *expected[0]);
  expect_same_values(*second, *expected[1]);
  EXPECT_TRUE(torch::equal(torch::randn({5}), expected_next));
}

TEST(DeferredRandom, ACloneMadeBeforeTheFirstDrawHasItsNumbers) {
  const auto make = [] {
    return custom([](Custom& module) {
      auto generator = at::detail::createCPUGenerator(7);
      auto clone = generator.clone();
      module.parameter("original", torch::randn({600, 600}, generator));
      module.parameter("clone", torch::randn({600, 600}, clone));
    });
  };
  auto module = deferred(make);
  materialize(*module);
  expect_same_values(*module, *make());
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

TEST(DeferredErrors, AWriteThatDoesNotFit) {
  const auto write = [](const std::function<void(torch::Tensor&)>& call) {
    return error_of([&] {
      deferred([&] {
        auto linear = make_linear();
        const torch::NoGradGuard no_grad;
        call(linear->weight);
        return linear;
      });
    });
  };
  EXPECT_THAT(write([](torch::Tensor& weight) { weight.copy_(torch::ones({600, 500})); }),
              AllOf(HasSubstr("aten::copy_"), HasSubstr("must match"), HasSubstr("600")));
  EXPECT_THAT(write([](torch::Tensor& weight) { weight.add_(torch::ones({7})); }),
              AllOf(HasSubstr("aten::add_"), HasSubstr("must match")));
  EXPECT_THAT(write([](torch::Tensor& weight) {
                torch::mul_out(weight, torch::ones({5, 5}), torch::ones({5, 5}));
              }),
              AllOf(HasSubstr("aten::mul"), HasSubstr("it writes [5, 5] into [500, 600]")));
}

TEST(DeferredErrors, AStateThatWasReadAfterADraw) {
  EXPECT_THAT(error_of([] { deferred([] { return make_with_state(true); }); }),
              HasSubstr("take the state, or the clone, before the first draw"));
  EXPECT_THAT(error_of([] {
                deferred([] {
                  auto generator = at::detail::createCPUGenerator(7);
                  auto first = torch::randn({600, 600}, generator);
                  auto clone = generator.clone();
                  return first + torch::randn({600, 600}, clone);
                });
              }),
              HasSubstr("copied with clone()"));
  torch::Tensor state;
  const auto first = deferred([&] {
    auto made = torch::randn({600, 600});
    state = at::detail::getDefaultCPUGenerator().get_state();
    return made + torch::randn({600, 600});
  });
  EXPECT_THAT(error_of([&] {
                deferred([&] {
                  at::Generator(at::detail::getDefaultCPUGenerator()).set_state(state);
                  return torch::randn({600, 600});
                });
              }),
              HasSubstr("after numbers had been drawn"));
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
                 torch::manual_seed(8);
                 static_cast<void>(torch::randn({600, 600}));
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
