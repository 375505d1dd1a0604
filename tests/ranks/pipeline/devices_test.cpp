// SPDX-License-Identifier: Apache-2.0
// Stages on several devices of one process, the processor several times or fake ones: every
// bit as processes of one stage each, and no race.
#include <trireme/base/error.h>
#include <trireme/optim/autocast.h>
#include <trireme/parallel/deferred.h>
#include <trireme/parallel/training_step.h>
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/schedule_text.h>

#include <c10/util/ScopeExit.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/fake_device/device.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/pipeline/networks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using test::Network;
using test::usage_error;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::run_ranks;

constexpr std::int64_t kSteps = 3;
constexpr std::int64_t kRows = 7;  // which the micro-batches do not divide
constexpr std::int64_t kMicroBatches = 3;

struct Outcome {
  std::vector<torch::Tensor> losses{};
  std::vector<torch::Tensor> tensors{};  ///< parameters, then buffers
  std::vector<torch::Tensor> gradients{};
};

void take_tensors(const Network& network, Outcome& outcome) {
  const auto copy = [](const torch::Tensor& tensor) { return tensor.detach().cpu().clone(); };
  for (const auto& parameter : network.module->parameters()) {
    outcome.tensors.push_back(copy(parameter));
    outcome.gradients.push_back(parameter.grad().defined() ? copy(parameter.grad())
                                                           : torch::Tensor());
  }
  for (const auto& buffer : network.module->buffers()) outcome.tensors.push_back(copy(buffer));
}

void expect_same_bits(const std::vector<torch::Tensor>& got,
                      const std::vector<torch::Tensor>& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(torch::equal(got[i], expected[i])) << what << " " << i;
  }
}

Plan plan_of(const Network& network, const std::string& schedule, int num_stages) {
  Plan plan;
  plan.schedule = schedule;
  plan.micro_batches = kMicroBatches;
  for (int stage = 0; stage < num_stages; ++stage) {
    plan.stages.emplace_back(network.modules[static_cast<std::size_t>(stage)], stage);
  }
  return plan;
}

template <typename Step>
void train(const Network& network, Outcome& outcome, const Step& step) {
  torch::optim::SGD optimizer(network.module->parameters(),
                              torch::optim::SGDOptions(0.1).momentum(0.9));
  for (std::int64_t i = 0; i < kSteps; ++i) {
    optimizer.zero_grad();
    outcome.losses.push_back(step(network.batch(kRows, i)).loss.cpu().clone());
    optimizer.step();
  }
}

using Devices = std::vector<at::Device>;

Devices processors(int count) { return Devices(static_cast<std::size_t>(count), at::kCPU); }

Devices fake(int count) {
  Devices devices;
  for (int index = 0; index < count; ++index) {
    devices.push_back(testing::fake::device(index));
  }
  return devices;
}

Outcome train_on_devices(const Network& network, const Plan& plan, const Devices& devices) {
  TrainingStep pipeline(*network.module, network.forward, plan, comm::Group::self(),
                        {.devices = devices});
  Outcome outcome;
  train(network, outcome, [&](const auto& batch) { return pipeline.step(batch); });
  take_tensors(network, outcome);
  return outcome;
}

// With ranks that have a module each.
Outcome train_on_ranks(const std::function<Network()>& make, Plan plan, int ranks) {
  plan.mesh = {{kStageAxis, ranks}};
  Outcome outcome;
  run_ranks(ranks, [&](const comm::Group& group) {
    const Network network = make();
    TrainingStep pipeline(*network.module, network.forward, plan, group);
    Outcome own;
    train(network, own, [&](const auto& batch) { return pipeline.step(batch); });
    pipeline.gather_parameters();
    if (group.rank() > 0) return;
    take_tensors(network, own);
    outcome = std::move(own);
  });
  return outcome;
}

struct Way {
  std::string schedule;
  int stages;
  int devices;
};

struct Case {
  std::string name;
  std::function<Network()> make;
  friend std::ostream& operator<<(std::ostream& out, const Case& test_case) {
    return out << test_case.name;
  }
};

class StagesOnDevicesOf : public ::testing::TestWithParam<Case> {};

TEST_P(StagesOnDevicesOf, HasTheBitsOfRanks) {
  for (const Way& way :
       {Way{"1f1b", 1, 1}, Way{"1f1b", 2, 2}, Way{"zb-h1", 4, 4}, Way{"gpipe", 3, 3},
        Way{"interleaved", 4, 2}, Way{"zb-v", 4, 2},
        Way{schedule::to_text(schedule::zero_bubble_h2(2, kMicroBatches)), 2, 2}}) {
    SCOPED_TRACE(way.schedule + " on " + std::to_string(way.devices));
    const Network network = GetParam().make();
    const Plan plan = plan_of(network, way.schedule, way.stages);
    const Outcome expected = train_on_ranks(GetParam().make, plan, way.devices);
    const Outcome got = train_on_devices(network, plan, processors(way.devices));
    expect_same_bits(got.losses, expected.losses, "loss");
    expect_same_bits(got.tensors, expected.tensors, "tensor");
  }
}

// Those whose kernels are the same on every device: not attention, LSTM and dropout.
class StagesOnDevicesElsewhere : public ::testing::TestWithParam<Case> {};

// Batches come from the processor, and from a device.
TEST_P(StagesOnDevicesElsewhere, HasTheBitsOfTheProcessor) {
  for (const auto& [schedule, stages, ranks] :
       {Way{"1f1b", 2, 2}, Way{"zb-h1", 4, 4}, Way{"zb-v", 4, 2}}) {
    SCOPED_TRACE(schedule);
    Network network = GetParam().make();
    const Plan plan = plan_of(network, schedule, stages);
    const Outcome expected = train_on_ranks(GetParam().make, plan, ranks);
    if (stages == 4) {
      network.batch = [given = network.batch](std::int64_t rows, std::int64_t step) {
        auto batch = given(rows, step);
        for (torch::Tensor& tensor : batch) tensor = tensor.to(testing::fake::device(3));
        return batch;
      };
    }
    const Outcome got = train_on_devices(network, plan, fake(ranks));
    expect_same_bits(got.losses, expected.losses, "loss");
    expect_same_bits(got.tensors, expected.tensors, "tensor");
  }
  EXPECT_THAT(testing::fake::take_races(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Networks, StagesOnDevicesElsewhere,
                         ::testing::Values(Case{"ResidualNet", test::residual_net},
                                           Case{"SkippingNet", test::skipping_net}),
                         [](const auto& param_info) { return param_info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Networks, StagesOnDevicesOf,
    ::testing::Values(Case{"ResidualNet", test::residual_net},
                      Case{"Dropout", [] { return test::language_model(0.2, true); }},
                      Case{"TiedEmbedding", [] { return test::language_model(0, true); }},
                      Case{"SkippingNet", test::skipping_net},
                      Case{"RecurrentNet", test::recurrent_net}),
    [](const auto& param_info) { return param_info.param.name; });

TEST(StagesOnDevices, CutsByItselfAndRecomputes) {
  const Network network = test::language_model(0.2);
  Plan plan;
  plan.micro_batches = kMicroBatches;
  plan.recompute = {"blocks.*"};
  const Outcome expected = train_on_ranks([] { return test::language_model(0.2); }, plan, 2);
  const Outcome got = train_on_devices(network, plan, processors(2));
  expect_same_bits(got.losses, expected.losses, "loss");
  expect_same_bits(got.tensors, expected.tensors, "tensor");
}

// The module's tensors are where their stages are, and still the same tensors.
TEST(StagesOnDevices, MovesTheModule) {
  const Network network = test::language_model(0, true);
  const auto before = network.module->parameters();
  TrainingStep pipeline(*network.module, network.forward, plan_of(network, "1f1b", 2),
                        comm::Group::self(), {.devices = {at::kCPU, testing::fake::device(1)}});
  pipeline.step(network.batch(6, 0));
  const auto after = network.module->named_parameters().pairs();
  for (std::size_t i = 0; i < before.size(); ++i) {
    const auto& item = after[i];
    EXPECT_TRUE(item.second.is_same(before[i])) << item.first;
    const bool is_first =
        item.first.find("embedding") != std::string::npos || item.first.starts_with("blocks.0.");
    EXPECT_EQ(item.second.is_cpu(), is_first) << item.first;
    EXPECT_EQ(item.second.grad().device(), item.second.device()) << item.first;
  }
}

// Gradients are added to what is there, on each use of a tied parameter once.
TEST(StagesOnDevices, AddsToGradients) {
  const Network network = test::language_model(0, true);
  TrainingStep pipeline(*network.module, network.forward, plan_of(network, "1f1b", 2),
                        comm::Group::self(), {.devices = {at::kCPU, at::kCPU}});
  pipeline.step(network.batch(6, 0));
  Outcome once;
  take_tensors(network, once);
  pipeline.step(network.batch(6, 0));
  Outcome twice;
  take_tensors(network, twice);
  for (torch::Tensor& gradient : once.gradients) gradient = gradient + gradient;
  expect_same_bits(twice.gradients, once.gradients, "gradient");
}

TEST(StagesOnDevices, EvaluatesAndLeavesTheModuleAsItWas) {
  const Network network = test::residual_net();
  const auto forward = [net = network.module.get()](const auto& in) -> std::vector<torch::Tensor> {
    const auto logits = static_cast<test::ResidualNetImpl*>(net)->forward(in[0]);
    return {torch::cross_entropy_loss(logits, in[1]), logits};
  };
  TrainingStep pipeline(*network.module, forward, plan_of(network, "1f1b", 2), comm::Group::self(),
                        {.devices = {at::kCPU, at::kCPU}});
  pipeline.step(network.batch(kRows, 0));
  Outcome before;
  take_tensors(network, before);
  for (const std::int64_t rows : {kRows, std::int64_t{2}}) {
    const auto batch = network.batch(rows, 1);
    const StepEvaluation evaluation = pipeline.evaluate(batch);
    network.module->eval();
    torch::Tensor logits;
    {
      const torch::NoGradGuard no_grad;
      std::vector<torch::Tensor> parts;
      for (const auto& part : batch[0].tensor_split(std::min(rows, kMicroBatches))) {
        parts.push_back(static_cast<test::ResidualNetImpl*>(network.module.get())->forward(part));
      }
      logits = torch::cat(parts);
    }
    network.module->train();
    EXPECT_TRUE(torch::equal(evaluation.results.at(0), logits)) << rows << " rows";
    const auto loss = torch::cross_entropy_loss(logits, batch[1]);
    EXPECT_TRUE(torch::allclose(evaluation.loss, loss, 1e-6, 1e-7)) << rows << " rows";
  }
  Outcome after;
  take_tensors(network, after);
  expect_same_bits(after.tensors, before.tensors, "tensor");
  expect_same_bits(after.gradients, before.gradients, "gradient");
  EXPECT_TRUE(network.module->is_training());
}

class StagesOnDevicesOn : public ::testing::TestWithParam<Devices> {};

INSTANTIATE_TEST_SUITE_P(Kinds, StagesOnDevicesOn, ::testing::Values(processors(2), fake(2)),
                         [](const auto& param_info) {
                           return param_info.param[0].is_cpu() ? "Processor" : "Fake";
                         });

TEST_P(StagesOnDevicesOn, FindsMicroBatchesAndLeavesNoTrace) {
  Network network = test::residual_net();
  Plan plan = plan_of(network, "1f1b", 2);
  plan.micro_batches = 0;
  TrainingStep pipeline(*network.module, network.forward, plan, comm::Group::self(),
                        {.devices = GetParam()});
  EXPECT_EQ(pipeline.plan().micro_batches, 0);
  Outcome before;
  take_tensors(network, before);
  const std::vector<SplitTime> times = pipeline.find_micro_batches(network.batch(8, 0));
  Outcome after;
  take_tensors(network, after);
  expect_same_bits(after.tensors, before.tensors, "tensor");
  EXPECT_TRUE(std::ranges::none_of(after.gradients,
                                   [](const auto& gradient) { return gradient.defined(); }));
  ASSERT_GE(times.size(), 2U);
  EXPECT_EQ(times.front().micro_batches, 1);
  EXPECT_EQ(times.front().rows, 8);
  const auto best = std::ranges::min_element(times, {}, &SplitTime::seconds);
  EXPECT_EQ(pipeline.plan().micro_batches, best->micro_batches);

  Outcome found;
  train(network, found, [&](const auto& batch) { return pipeline.step(batch); });
  take_tensors(network, found);
  const Network again = test::residual_net();
  // The batches of train() have fewer rows, and so at most that many micro-batches.
  plan.micro_batches = std::min<std::int64_t>(best->micro_batches, kRows);
  const Outcome named = train_on_devices(again, plan, GetParam());
  expect_same_bits(found.losses, named.losses, "loss");
  expect_same_bits(found.tensors, named.tensors, "tensor");
  EXPECT_THAT(testing::fake::take_races(), IsEmpty());
}

// With a tied embedding, whose gradients come together from both devices.
TEST(StagesOnDevices, TrainsALanguageModelElsewhere) {
  const auto make = [] { return test::language_model(0, true); };
  const Network network = make();
  for (const char* const schedule : {"1f1b", "zb-h1"}) {
    const Plan plan = plan_of(network, schedule, 3);
    const Outcome expected = train_on_ranks(make, plan, 3);
    const Outcome got = train_on_devices(make(), plan, fake(3));
    for (std::size_t i = 0; i < got.tensors.size(); ++i) {
      EXPECT_TRUE(torch::allclose(got.tensors[i], expected.tensors[i], 1e-5, 1e-6))
          << schedule << ", tensor " << i;
    }
  }
  EXPECT_THAT(testing::fake::take_races(), IsEmpty());
}

// Some stages on the processor, some elsewhere; the pipeline is moved between steps, and so is the
// module.
TEST(StagesOnDevices, TrainsOnTheProcessorAndElsewhere) {
  // Stages on the processor share its threads, and some convolutions add by thread.
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const auto restore = c10::make_scope_exit([&] { at::set_num_threads(before); });
  const Network network = test::residual_net();
  const Plan plan = plan_of(network, "1f1b", 3);
  const Outcome expected = train_on_ranks(test::residual_net, plan, 3);
  TrainingStep made(*network.module, network.forward, plan, comm::Group::self(),
                    {.devices = {at::kCPU, testing::fake::device(1), at::kCPU}});
  TrainingStep pipeline = std::move(made);
  Outcome got;
  train(network, got, [&](const auto& batch) {
    network.module->to(at::kCPU);  // as for a checkpoint
    return pipeline.step(batch);
  });
  take_tensors(network, got);
  expect_same_bits(got.losses, expected.losses, "loss");
  expect_same_bits(got.tensors, expected.tensors, "tensor");
  EXPECT_THAT(testing::fake::take_races(), IsEmpty());
}

// The batch is made on a stream of the caller's, on a device that has no stage.
TEST(StagesOnDevices, WaitsForABatchOfAnotherStream) {
  const Network network = test::skipping_net();
  TrainingStep pipeline(*network.module, network.forward, plan_of(network, "1f1b", 2),
                        comm::Group::self(), {.devices = fake(2)});
  const auto expected = pipeline.step(network.batch(6, 0)).loss.cpu();
  {
    const testing::fake::OnStream on_stream(testing::fake::new_stream(3));
    auto batch = network.batch(6, 0);
    for (torch::Tensor& tensor : batch) {
      tensor = tensor.to(testing::fake::device(3)).mul_(2).div_(2);
    }
    EXPECT_TRUE(torch::equal(pipeline.step(batch).loss.cpu(), expected));
  }
  EXPECT_THAT(testing::fake::take_races(), IsEmpty());
}

// Gradients and deferred modules are there before anything has been measured.
TEST(StagesOnDevices, FindsMicroBatchesOfAModuleWithoutMemory) {
  const auto network = [] {
    auto net = deferred([] { return std::make_shared<test::ResidualNetImpl>(); });
    Network residual = test::residual_net();
    residual.module = net;
    residual.forward = [net = net.get()](const auto& in) -> std::vector<torch::Tensor> {
      return {torch::cross_entropy_loss(net->forward(in[0]), in[1])};
    };
    return residual;
  }();
  Plan plan = plan_of(network, "1f1b", 2);
  plan.micro_batches = 0;
  TrainingStep pipeline(*network.module, network.forward, plan, comm::Group::self(),
                        {.devices = fake(2)});
  EXPECT_GE(pipeline.find_micro_batches(network.batch(4, 0)).size(), 2U);
  EXPECT_TRUE(torch::isfinite(pipeline.step(network.batch(4, 0)).loss).item<bool>());
}

TEST(StagesOnDevices, BringsGradientsAlong) {
  const Network network = test::skipping_net();
  const auto batch = network.batch(4, 0);
  network.forward(batch)[0].backward();
  Plan plan = plan_of(network, "1f1b", 2);
  plan.micro_batches = 0;
  TrainingStep pipeline(*network.module, network.forward, plan, comm::Group::self(),
                        {.devices = fake(2)});
  pipeline.find_micro_batches(batch);
  for (const torch::Tensor& parameter : network.module->parameters()) {
    EXPECT_EQ(parameter.grad().device(), parameter.device());
  }
  pipeline.step(batch);
}

// Masks of a part that runs again are those of its first run, also where a device's own generator
// draws them; that generator is afterwards what it was.
TEST_P(StagesOnDevicesOn, DrawsTheSameNumbersAgain) {
  std::vector<Outcome> outcomes;
  for (const bool recomputes : {false, true}) {
    const Network network = test::language_model(0.5);
    Plan plan = plan_of(network, "1f1b", 2);
    if (recomputes) plan.recompute = {"blocks.*"};
    const at::Generator generator = at::globalContext().defaultGenerator(GetParam()[0]);
    const at::Tensor before = generator.get_state();
    outcomes.push_back(train_on_devices(network, plan, GetParam()));
    EXPECT_TRUE(torch::equal(generator.get_state(), before));
  }
  expect_same_bits(outcomes[1].losses, outcomes[0].losses, "loss");
  expect_same_bits(outcomes[1].tensors, outcomes[0].tensors, "tensor");
  EXPECT_FALSE(torch::equal(outcomes[0].losses[0], outcomes[0].losses[1]));
  EXPECT_THAT(testing::fake::take_races(), IsEmpty());
}

// A batch that is shorter than the number that was found goes in as many as it has rows.
TEST(StagesOnDevices, FirstStepFindsMicroBatches) {
  const Network network = test::skipping_net();
  Plan plan = plan_of(network, "1f1b", 2);
  plan.micro_batches = 0;
  TrainingStep pipeline(*network.module, network.forward, plan, comm::Group::self(),
                        {.devices = {at::kCPU, at::kCPU}});
  const auto batch = network.batch(16, 0);
  const auto loss = pipeline.step(batch).loss;
  EXPECT_GE(pipeline.plan().micro_batches, 1);
  EXPECT_TRUE(torch::allclose(loss, network.forward(batch)[0], 1e-5, 1e-6));
  EXPECT_TRUE(torch::isfinite(pipeline.step(network.batch(1, 1)).loss).item<bool>());
}

TEST(StagesOnDevices, GoesOnAfterAFailure) {
  const Network network = test::language_model(0);
  TrainingStep pipeline(*network.module, network.forward, plan_of(network, "1f1b", 2),
                        comm::Group::self(), {.devices = {at::kCPU, at::kCPU}});
  const auto batch = network.batch(6, 0);
  const auto expected = pipeline.step(batch).loss.clone();
  auto wrong = batch;
  wrong[1] = wrong[1] + 100;  // of no class: the last stage fails, with others waiting for it
  EXPECT_THAT([&] { pipeline.step(wrong); },
              ::testing::ThrowsMessage<UsageError>(HasSubstr("out of bounds")));
  EXPECT_TRUE(torch::equal(pipeline.step(batch).loss, expected));
}

TEST(StagesOnDevices, ReportsWhatRan) {
  const Network network = test::skipping_net();
  TrainingStep pipeline(*network.module, network.forward, plan_of(network, "zb-h1", 2),
                        comm::Group::self(), {.devices = {at::kCPU, at::kCPU}});
  const StepOutput step = pipeline.step(network.batch(6, 0), {.report = true});
  ASSERT_TRUE(step.report);
  EXPECT_EQ(step.report->timeline.ranks.size(), 2U);
  EXPECT_GT(step.report->peak_bytes.at(0), 0);
  EXPECT_THAT(pipeline.to_string(), AllOf(HasSubstr("stage 0 on rank 0"), HasSubstr("stage 1")));
}

// Threads of the processor are shared among its stages; the caller has as many as before.
TEST(StagesOnDevices, LeavesTheNumberOfThreads) {
  const int before = at::get_num_threads();
  const Network network = test::skipping_net();
  TrainingStep pipeline(*network.module, network.forward, plan_of(network, "1f1b", 2),
                        comm::Group::self(), {.devices = {at::kCPU, at::kCPU}});
  pipeline.step(network.batch(6, 0));
  EXPECT_EQ(at::get_num_threads(), before);
}

TEST(StagesOnDevices, RefusesWhatItCannotHave) {
  const Network network = test::skipping_net();
  const auto error_of = [&](const Plan& plan, const std::vector<at::Device>& devices) {
    return usage_error([&] {
      const TrainingStep refused(*network.module, network.forward, plan, comm::Group::self(),
                                 {.devices = devices});
    });
  };
  const Plan plan = plan_of(network, "1f1b", 2);
  const std::vector<at::Device> two = {at::kCPU, at::kCPU};
  if (!torch::cuda::is_available()) {
    EXPECT_THAT(error_of(plan, {at::kCPU, at::Device("cuda:1")}),
                AllOf(HasSubstr("no device cuda:1"), HasSubstr("sees 0")));
  }
  const at::Device fake = testing::fake::device(2);
  EXPECT_THAT(error_of(plan, {fake, fake}),
              AllOf(HasSubstr("fake:2 is named twice"), HasSubstr("plan.chunks")));
  EXPECT_THAT(error_of(plan, {fake, testing::fake::device(7)}),
              AllOf(HasSubstr("no device fake:7"), HasSubstr("sees 4")));
  Plan wrong = plan;
  wrong.mesh = {{kStageAxis, 3}};
  EXPECT_THAT(error_of(wrong, two),
              AllOf(HasSubstr("mesh is"), HasSubstr("the 2 devices of each process along pipe")));
  wrong = plan;
  wrong.offload_activations = true;
  EXPECT_THAT(error_of(wrong, two), HasSubstr("whose memory is the host's"));
  wrong = plan;
  wrong.zero_level = 3;
  EXPECT_THAT(error_of(wrong, two), HasSubstr("cut over ranks"));
  wrong = plan;
  wrong.micro_batches = -1;
  EXPECT_THAT(error_of(wrong, two), HasSubstr("micro_batches"));
  wrong = plan;
  wrong.schedule = "1f2b";
  EXPECT_THAT(error_of(wrong, two), HasSubstr("1f2b"));
  Plan own = plan;
  own.schedule =
      schedule::to_text(schedule::zero_bubble_h1(2, static_cast<int>(plan.micro_batches)));
  EXPECT_THAT(usage_error([&] {
                TrainingStep(*network.module, network.forward, own, comm::Group::self(),
                             {.devices = two})
                    .find_micro_batches(network.batch(6, 0));
              }),
              HasSubstr("no other number can be measured"));
  own.micro_batches = 0;
  EXPECT_THAT(error_of(own, two), HasSubstr("for any number of micro-batches"));
  TrainingStep pipeline(*network.module, network.forward, plan, comm::Group::self(),
                        {.devices = two});
  EXPECT_THAT(usage_error([&] { pipeline.graph(); }), HasSubstr("call step() or prepare() first"));
  {
    const Autocast autocast(at::kCPU, at::kBFloat16);
    EXPECT_THAT(usage_error([&] { pipeline.step(network.batch(6, 0)); }), HasSubstr("autocast"));
  }
  EXPECT_THAT(usage_error([&] { pipeline.step(network.batch(2, 0)); }),
              HasSubstr("cannot be cut into 3"));
}

// One writes what the other reads, at the same time.
TEST(StagesOnDevices, RefusesABufferOfTwoDevices) {
  struct Counting : torch::nn::Module {
    Counting() {
      first = register_module("first", torch::nn::Linear(3, 3));
      last = register_module("last", torch::nn::Linear(3, 3));
      count = register_buffer("count", torch::zeros({}));
    }
    torch::Tensor forward(const torch::Tensor& x) {
      const auto between = last(first(x) + count);
      count += 1;
      return between;
    }
    torch::nn::Linear first{nullptr}, last{nullptr};
    torch::Tensor count;
  };
  Counting net;
  Plan plan;
  plan.stages = {{"first", 0}, {"last", 1}};
  plan.micro_batches = 2;
  TrainingStep pipeline(
      net, [&](const auto& in) -> std::vector<torch::Tensor> { return {net.forward(in[0]).sum()}; },
      plan, comm::Group::self(), {.devices = {at::kCPU, at::kCPU}});
  EXPECT_THAT(usage_error([&] { pipeline.step({torch::ones({4, 3})}); }), HasSubstr("count"));
}

}  // namespace
}  // namespace trireme
