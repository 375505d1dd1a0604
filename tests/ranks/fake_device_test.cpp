// SPDX-License-Identifier: Apache-2.0
// The fake accelerator of the tests: it must compute what the processor computes, and
// refuse what a real one would refuse or get wrong.
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <gmock/gmock.h>
#include <tests/fake_device/device.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace trireme::testing::fake {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

class FakeDevice : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_THAT(take_races(), IsEmpty()); }
};

using FakeStreams = FakeDevice;

TEST_F(FakeDevice, MakesMovesAndComputesTensors) {
  EXPECT_EQ(torch::Device("fake:1"), device(1));
  const torch::Tensor host = torch::randn({5, 7});
  const torch::Tensor here = host.to(device(1));
  EXPECT_EQ(here.device(), device(1));
  EXPECT_TRUE(torch::equal(here.cpu(), host));
  EXPECT_TRUE(torch::equal((here.t().matmul(here) + 1).cpu(), host.t().matmul(host) + 1));
  EXPECT_TRUE(torch::equal(here.to(device(3)).to(torch::kDouble).cpu(), host.to(torch::kDouble)));
  EXPECT_EQ(torch::full({2}, 3, device(2)).sum().item<int>(), 6);
  EXPECT_TRUE(torch::equal(torch::arange(4, device(0)).cpu(), torch::arange(4)));
  EXPECT_EQ(torch::empty({}, torch::TensorOptions(c10::kPrivateUse1)).device(), device(0));
}

TEST_F(FakeDevice, KeepsViewsInPlaceAndSizesOfResults) {
  const torch::Tensor here = torch::zeros({4, 4}, device(0));
  here.select(0, 1).add_(1);
  here.t().select(0, 2).mul_(5).add_(here.select(1, 0));
  here.unfold(1, 2, 1).select(2, 0).sub_(1);
  const torch::Tensor host = torch::zeros({4, 4});
  host.select(0, 1).add_(1);
  host.t().select(0, 2).mul_(5).add_(host.select(1, 0));
  host.unfold(1, 2, 1).select(2, 0).sub_(1);
  EXPECT_TRUE(torch::equal(here.cpu(), host));
  torch::Tensor result = torch::empty({0}, device(0));
  torch::add_out(result, here, here);
  EXPECT_TRUE(torch::equal(result.cpu(), host + host));
  EXPECT_TRUE(here.view({16}).is_alias_of(here));
  EXPECT_EQ(std::get<1>(here.max(1)).device(), device(0));
  EXPECT_TRUE(torch::equal(torch::cat({here, here}, 1).cpu(), torch::cat({host, host}, 1)));
}

TEST_F(FakeDevice, FindsTheDeviceOfMemoryAndKeepsItsOwn) {
  const torch::Tensor whole = torch::arange(6, device(2));
  auto* const data = whole.data_ptr<std::int64_t>();
  const torch::Tensor same = torch::from_blob(data + 2, {3}, torch::kLong);
  EXPECT_TRUE(same.is_cpu());
  const torch::Tensor there =
      torch::from_blob(data + 2, {3}, torch::TensorOptions(torch::kLong).device(device(2)));
  EXPECT_EQ(there.device(), device(2));
  EXPECT_EQ(there.sum().item<int>(), 9);
  EXPECT_TRUE(torch::ones({2}).pin_memory().is_pinned());
  const std::size_t before = bytes_on(3);
  {
    const torch::Tensor some = torch::empty({1000}, device(3));
    EXPECT_EQ(bytes_on(3), before + 4000);
  }
  EXPECT_EQ(bytes_on(3), before);
}

TEST_F(FakeDevice, DrawsRandomNumbersOfItsOwnGenerators) {
  torch::manual_seed(7);
  const torch::Tensor host = torch::randn({10});
  const torch::Tensor zero = torch::randn({10}, device(0));
  const torch::Tensor one = torch::dropout(torch::ones({10}, device(1)), 0.1, true);
  torch::manual_seed(7);
  EXPECT_TRUE(torch::equal(zero.cpu(), host));
  EXPECT_TRUE(torch::equal(one.cpu(), torch::dropout(torch::ones({10}), 0.1, true)));
}

TEST_F(FakeDevice, RefusesTensorsOfTwoDevicesInOneOperator) {
  const torch::Tensor zero = torch::ones({2}, device(0));
  const torch::Tensor one = torch::ones({2}, device(1));
  const torch::Tensor host = torch::ones({2});
  EXPECT_THAT(message_of([&] { zero + one; }), HasSubstr("fake:1"));
  EXPECT_THAT(message_of([&] { zero.add_(host); }), HasSubstr("cpu"));
  EXPECT_THAT(message_of([&] { torch::cat({zero, one}); }),
              AllOf(HasSubstr("cat"), HasSubstr("fake:0"), HasSubstr("fake:1")));
  EXPECT_THAT(message_of([&] { torch::linear(zero, host.unsqueeze(0)); }), HasSubstr("cpu"));
  EXPECT_EQ((zero + torch::tensor(2.0F)).sum().item<float>(), 6);  // a single number goes along
}

TEST_F(FakeStreams, MustWaitForWhatTheyReadAndWrite) {
  const torch::Tensor tensor = torch::ones({8}, device(0));
  const OnStream stream(new_stream(0));
  EXPECT_THAT(message_of([&] { tensor.sum(); }),
              AllOf(HasSubstr("stream 0 of fake:0 writes"), HasSubstr("has not waited")));
  EXPECT_THAT(message_of([&] { tensor.to(device(1)); }), HasSubstr("has not waited"));
}

TEST_F(FakeStreams, MayUseWhatAnEventOrTheHostHasWaitedFor) {
  const torch::Tensor tensor = torch::ones({8}, device(0));
  c10::Event written(c10::kPrivateUse1);
  written.record(c10::Stream(c10::Stream::DEFAULT, device(0)));
  const c10::Stream other = new_stream(0);
  written.block(other);
  c10::Event read(c10::kPrivateUse1);
  {
    const OnStream stream(other);
    EXPECT_EQ(tensor.mul(2).cpu()[7].item<float>(), 2);
    read.record(other);
  }
  const torch::Tensor more = tensor.add(1);
  EXPECT_EQ(more[0].item<float>(), 2);  // the host waits for all that was given before
  const OnStream stream(new_stream(0));
  EXPECT_EQ(more.sum().item<float>(), 16);
}

TEST_F(FakeStreams, MustBeWaitedForBeforeTheirMemoryIsGivenAgain) {
  const auto use_elsewhere = [](bool is_recorded, bool is_waited_for) {
    const c10::Stream home(c10::Stream::DEFAULT, device(0));
    const c10::Stream other = new_stream(0);
    const torch::Tensor tensor = torch::ones({8}, device(0));
    c10::Event ready(c10::kPrivateUse1);
    ready.record(home);
    ready.block(other);
    {
      const OnStream stream(other);
      static_cast<void>(tensor.add(1));
    }
    if (is_recorded) tensor.record_stream(other);
    if (is_waited_for) {
      c10::Event done(c10::kPrivateUse1);
      done.record(other);
      done.block(home);
    }
  };
  use_elsewhere(false, false);
  EXPECT_THAT(take_races(), Contains(AllOf(HasSubstr("stream 0 of fake:0 is given memory"),
                                           HasSubstr("reads 32 bytes"))));
  use_elsewhere(true, false);
  use_elsewhere(false, true);
}

TEST_F(FakeStreams, LookBusyWhileTheyAreHeld) {
  c10::Event event(c10::kPrivateUse1);
  {
    const Busy busy;
    event.record(c10::Stream(c10::Stream::DEFAULT, device(0)));
    EXPECT_FALSE(event.query());
  }
  EXPECT_TRUE(event.query());
}

struct Mlp : torch::nn::Module {
  Mlp()
      : first(register_module("first", torch::nn::Linear(6, 16))),
        second(register_module("second", torch::nn::Linear(16, 3))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return second(torch::dropout(torch::gelu(first(x)), 0.1, true));
  }
  torch::Tensor batch() const { return torch::randn({8, 6}); }
  torch::nn::Linear first, second;
};

struct ConvolutionNet : torch::nn::Module {
  ConvolutionNet()
      : convolution(register_module(
            "convolution", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 5, 3).padding(1)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(5))),
        strided(register_module(
            "strided", torch::nn::Conv2d(torch::nn::Conv2dOptions(5, 4, 3).stride(2).bias(false)))),
        linear(register_module("linear", torch::nn::Linear(4, 3))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor features = torch::max_pool2d(torch::relu(norm(convolution(x))), 2);
    return linear(strided(features).mean({2, 3}));
  }
  torch::Tensor batch() const { return torch::randn({8, 2, 9, 9}); }
  torch::nn::Conv2d convolution;
  torch::nn::BatchNorm2d norm;
  torch::nn::Conv2d strided;
  torch::nn::Linear linear;
};

// Every parameter and buffer after some steps.
template <typename Net>
std::vector<torch::Tensor> train(torch::Device where) {
  torch::manual_seed(11);
  Net net;
  std::vector<torch::Tensor> batches;
  for (int step = 0; step < 3; ++step) batches.push_back(net.batch());
  const torch::Tensor labels = torch::arange(8).remainder(3).to(where);
  net.to(where);
  torch::manual_seed(12);  // of the device's generator, too
  torch::optim::Adam optimizer(net.parameters(), 0.01);
  for (const torch::Tensor& batch : batches) {
    optimizer.zero_grad();
    torch::cross_entropy_loss(net.forward(batch.to(where)), labels).backward();
    optimizer.step();
  }
  std::vector<torch::Tensor> all;
  for (const torch::Tensor& tensor : net.parameters()) all.push_back(tensor.detach().cpu());
  for (const torch::Tensor& tensor : net.buffers()) all.push_back(tensor.cpu());
  return all;
}

template <typename Net>
void expect_same_bits() {
  const std::vector<torch::Tensor> host = train<Net>(torch::kCPU);
  for (const int index : {0, 3}) {
    const std::vector<torch::Tensor> here = train<Net>(device(index));
    ASSERT_EQ(here.size(), host.size());
    for (std::size_t i = 0; i < here.size(); ++i) EXPECT_TRUE(torch::equal(here[i], host[i])) << i;
  }
}

TEST_F(FakeDevice, TrainsAnMlpWithTheProcessorsBits) { expect_same_bits<Mlp>(); }
TEST_F(FakeDevice, TrainsAConvolutionNetworkWithTheProcessorsBits) {
  expect_same_bits<ConvolutionNet>();
}

TEST_F(FakeDevice, RunsBackwardByAThreadForEachDevice) {
  torch::Tensor first = torch::ones({3}, device(0)).requires_grad_();
  std::thread::id of_first;
  std::thread::id of_second;
  const torch::Tensor here = first * 2;
  const torch::Tensor there = here.to(device(1));
  here.register_hook([&](const torch::Tensor&) { of_first = std::this_thread::get_id(); });
  const torch::Tensor last = there.pow(2);
  there.register_hook([&](const torch::Tensor&) { of_second = std::this_thread::get_id(); });
  last.sum().backward();
  EXPECT_TRUE(torch::equal(first.grad().cpu(), torch::full({3}, 8.0F)));
  EXPECT_NE(of_first, std::this_thread::get_id());
  EXPECT_NE(of_second, std::this_thread::get_id());
  EXPECT_NE(of_first, of_second);
}

}  // namespace
}  // namespace trireme::testing::fake
