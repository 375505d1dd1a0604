// SPDX-License-Identifier: Apache-2.0
// Modules that stay plain inside a tensor plan, several modules on one mesh, and what is said where
// the memory of a distributed tensor is wanted.
#include <trireme/tensor/run_replicated.h>

#include <trireme/optim/gradients.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/parallel/training_step.h>
#include <trireme/predict/explain.h>
#include <trireme/tensor/distributed_tensor.h>

#include <gmock/gmock.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/thread_ranks.h>

#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

namespace nn = torch::nn;
using ::testing::HasSubstr;

template <typename Module>
void fill(Module& module) {
  const torch::NoGradGuard guard;
  module.to(torch::kDouble);
  for (auto& parameter : module.parameters()) {
    const auto numbers = torch::arange(parameter.numel(), torch::kDouble).mul(0.37).sin();
    parameter.copy_(numbers.view(parameter.sizes()).div(2));
  }
}

torch::Tensor numbers(torch::IntArrayRef sizes) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return torch::arange(count, torch::kDouble).mul(0.7).cos().view(sizes);
}

// Sequences of several lengths through an LSTM, between layers that are cut.
struct ReaderImpl : nn::Module {
  nn::Linear before{nullptr}, after{nullptr};
  nn::LSTM lstm{nullptr};

  ReaderImpl() {
    before = register_module("before", nn::Linear(6, 6));
    lstm = register_module("lstm", nn::LSTM(6, 4));
    after = register_module("after", nn::Linear(4, 6));
  }

  torch::Tensor read(const torch::Tensor& steps, const torch::Tensor& lengths) {
    const auto packed = nn::utils::rnn::pack_padded_sequence(steps, lengths);
    const auto [output, state] = lstm->forward_with_packed_input(packed);
    return std::get<0>(nn::utils::rnn::pad_packed_sequence(output));
  }

  torch::Tensor forward(const torch::Tensor& steps, const torch::Tensor& lengths) {
    const auto read_steps =
        run_replicated([&](const torch::Tensor& x) { return read(x, lengths); }, before(steps));
    return after(read_steps);
  }
};
TORCH_MODULE(Reader);

Plan plan_of(const ParameterLayouts& layouts) {
  Plan plan;
  plan.mesh = {{"tensor", 2}};
  plan.layouts = layouts;
  return plan;
}

ParameterLayouts reader_layouts() {
  return join({column_parallel("before"), column_parallel("after"), keep_whole("lstm")});
}

torch::Tensor loss_of(Reader& reader) {
  const auto lengths = torch::tensor({5, 3, 2});
  return reader(numbers({5, 3, 6}), lengths).square().mean();
}

TEST(KeptWhole, PackedSequencesTrainAsInOneProcess) {
  Reader alone;
  fill(*alone);
  torch::optim::SGD optimizer(alone->parameters(), 0.5);
  std::vector<double> losses;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const auto loss = loss_of(alone);
    loss.backward();
    losses.push_back(loss.item<double>());
    nn::utils::clip_grad_norm_(alone->parameters(), 0.05);
    optimizer.step();
  }
  testing::run_ranks(2, [&](const comm::Group& group) {
    Reader reader;
    fill(*reader);
    auto parallel = parallelize(*reader, plan_of(reader_layouts()), group);
    EXPECT_FALSE(has_layout(reader->lstm->all_weights()[0]));
    EXPECT_TRUE(has_layout(reader->after->weight));
    torch::optim::SGD own(reader->parameters(), 0.5);
    for (const double expected : losses) {
      own.zero_grad();
      const auto loss = loss_of(reader);
      loss.backward();
      EXPECT_NEAR(loss.item<double>(), expected, 1e-12);
      clip_by_global_norm(own, 0.05, parallel.sharing());
      own.step();
    }
    for (std::size_t i = 0; i < alone->parameters().size(); ++i) {
      const auto whole = full(reader->parameters()[i].detach());
      EXPECT_LT((whole - alone->parameters()[i].detach()).abs().max().item<double>(), 1e-9) << i;
    }
  });
}

TEST(KeptWhole, IsCalledWithinRunWholeOrSaysSo) {
  testing::run_ranks(2, [](const comm::Group& group) {
    Reader reader;
    fill(*reader);
    const auto parallel = parallelize(*reader, plan_of(reader_layouts()), group);
    const auto steps = reader->before(numbers({5, 3, 6}));
    EXPECT_THAT(
        test::usage_error([&] { reader->lstm(steps); }),
        HasSubstr(
            "a module that plan.layouts keep whole is called within trireme::run_replicated"));
    EXPECT_THAT(
        test::usage_error([&] { reader->read(steps, torch::tensor({5, 3, 2})); }),
        HasSubstr("run that part of the model on whole tensors with trireme::run_replicated"));
  });
}

struct AroundPlainImpl : nn::Module {
  nn::Linear before = register_module("before", nn::Linear(6, 6));
  nn::Linear whole = register_module("whole", nn::Linear(6, 4));
  nn::Linear after = register_module("after", nn::Linear(4, 6));
  torch::Tensor forward(const torch::Tensor& x) {
    return after(run_replicated([&](const torch::Tensor& in) { return whole(in); }, before(x)));
  }
};
TORCH_MODULE(AroundPlain);

// explain said to do what the model did already.
TEST(KeptWhole, IsExplained) {
  AroundPlain net;
  const Plan plan =
      plan_of(join({column_parallel("before"), column_parallel("after"), keep_whole("whole")}));
  const predict::Explanation explanation = predict::explain(
      *net, plan, [&] { return net(numbers({5, 6}).to(torch::kFloat)).square().mean(); });
  int products = 0;
  int gathers = 0;
  for (const predict::ExplainedOperator& op : explanation.operators) {
    if (op.is_backward) continue;
    const bool is_product = op.call.name.find("addmm") != std::string::npos ||
                            op.call.name.find("linear") != std::string::npos;
    products += is_product && op.call.ranks_at_work == 1;
    for (const auto& line : op.communication) gathers += line.collective == "all-gather";
  }
  EXPECT_EQ(products, 1);  // on every rank
  EXPECT_EQ(gathers, 1);   // of what goes in
}

TEST(KeptWhole, IsRefusedByPipelinesByName) {
  testing::run_ranks(2, [](const comm::Group& group) {
    AroundPlain net;
    Plan plan = plan_of(join({column_parallel("before"), keep_whole("whole")}));
    plan.mesh.push_back({kStageAxis, 1});
    plan.micro_batches = 2;
    EXPECT_THAT(test::usage_error([&] {
                  const TrainingStep pipeline(
                      *net, [&](const auto& in) { return std::vector{net(in[0]).sum()}; }, plan,
                      group);
                }),
                HasSubstr("a training step cannot keep whole.* plain"));
  });
}

TEST(KeptWhole, IsTheFunctionAloneOnPlainTensors) {
  const auto x = numbers({3, 2});
  EXPECT_TRUE(
      torch::equal(run_replicated([](const torch::Tensor& in) { return in * 2; }, x), x * 2));
}

TEST(KeptWhole, GivesTuplesAndVectorsOfDistributedTensors) {
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto x = distribute(numbers({4, 2}), Layout(mesh, {Shard{0}}));
    const auto [sum, parts, count] = run_replicated(
        [](const torch::Tensor& in, const torch::Tensor& other) {
          return std::tuple(in + other, in.unbind(1), in.size(0));
        },
        x, numbers({4, 2}));
    EXPECT_EQ(layout_of(sum), Layout::replicated(mesh));
    ASSERT_EQ(parts.size(), 2U);
    EXPECT_TRUE(has_layout(parts[1]));
    EXPECT_EQ(count, 4);
    EXPECT_TRUE(torch::equal(full(sum), numbers({4, 2}) * 2));
  });
}

TEST(KeptWhole, IsWrittenAndReadAsText) {
  const ParameterLayouts layouts = keep_whole("encoder.lstm");
  EXPECT_EQ(to_string(layouts[0]), "encoder.lstm.* -> plain");
  EXPECT_EQ(parse_layout("encoder.lstm.* -> plain"), layouts[0]);
}

// An operator that is allowed to run on whole tensors is declared where programs find it.
TEST(AllowReplication, LetsAnOperatorWithoutARuleRun) {
  tensor::allow_replication("aten::_standard_gamma_grad");
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto x = distribute(numbers({8}), Layout(mesh, {Shard{0}}));
    const auto got = torch::_standard_gamma_grad(x.abs() + 1, x.abs() + 1);
    const auto plain = numbers({8}).abs() + 1;
    EXPECT_TRUE(torch::allclose(full(got), torch::_standard_gamma_grad(plain, plain)));
  });
}

TEST(OneMesh, ModulesThatArePlannedAlikeFeedEachOther) {
  nn::Linear first(6, 8);
  nn::Linear second(8, 4);
  fill(*first);
  fill(*second);
  const auto expected = second(first(numbers({3, 6}))).detach();
  testing::run_ranks(2, [&](const comm::Group& group) {
    nn::Linear encoder(6, 8);
    nn::Linear decoder(8, 4);
    fill(*encoder);
    fill(*decoder);
    const Plan columns =
        plan_of({{"weight", {{"tensor", Shard{0}}}}, {"bias", {{"tensor", Shard{0}}}}});
    const Plan rows = plan_of({{"weight", {{"tensor", Shard{1}}}}});
    const auto one = parallelize(*encoder, columns, group);
    const auto other = parallelize(*decoder, rows, group);
    EXPECT_EQ(one.mesh(), other.mesh());
    const auto got = decoder(encoder(numbers({3, 6})));
    got.sum().backward();
    EXPECT_LT((full(got.detach()) - expected).abs().max().item<double>(), 1e-12);
  });
}

TEST(OneMesh, AnAxisDataBesideItChangesNothing) {
  testing::run_ranks(4, [](const comm::Group& group) {
    nn::Linear encoder(6, 8);
    nn::Linear decoder(8, 4);
    fill(*encoder);
    fill(*decoder);
    Plan plan = plan_of({{"weight", {{"tensor", Shard{0}}}}});
    plan.mesh = {{"data", 2}, {"tensor", 2}};
    const auto one = parallelize(*encoder, plan, group);
    const auto other = parallelize(*decoder, plan, group);
    EXPECT_EQ(one.mesh(), other.mesh());
    EXPECT_NO_THROW(decoder(encoder(numbers({3, 6}))).sum().backward());
  });
}

TEST(OneMesh, ParallelizeTakesAMesh) {
  testing::run_ranks(4, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"data", 2}, {"tensor", 2}});
    nn::Linear linear(6, 8);
    fill(*linear);
    Plan plan;
    plan.layouts = {{"weight", {{"tensor", Shard{0}}}}};
    const auto parallel = parallelize(*linear, plan, mesh);
    EXPECT_EQ(parallel.mesh(), mesh.submesh({"tensor"}));
    EXPECT_EQ(parallel.data_group().size(), 2);
    plan.mesh = {{"tensor", 4}};
    nn::Linear another(6, 8);
    EXPECT_THAT(test::usage_error([&] { auto made = parallelize(*another, plan, mesh); }),
                HasSubstr("a plan whose mesh has other axes"));
  });
}

TEST(OneMesh, SeveralModulesTrainAsOne) {
  testing::run_ranks(2, [](const comm::Group& group) {
    nn::Linear generator(6, 8);
    nn::Linear critic(8, 4);
    fill(*generator);
    fill(*critic);
    const Plan plan = plan_of(join({column_parallel("generator"), row_parallel("critic")}));
    const auto parallel = parallelize({{"generator", generator}, {"critic", critic}}, plan, group);
    EXPECT_TRUE(layout_of(generator->weight)[0].is_shard(0));
    EXPECT_TRUE(layout_of(critic->weight)[0].is_shard(1));
    critic(generator(numbers({3, 6}))).sum().backward();
    EXPECT_EQ(layout_of(generator->weight.grad()), layout_of(generator->weight));
    EXPECT_THAT(
        test::usage_error([&] { auto made = parallelize({{"a.b", generator}}, plan, group); }),
        HasSubstr("given a module by the name 'a.b'"));
  });
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(NoMemory, PrintingAndSavingSayWhatToCall) {
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    nn::Linear linear(6, 8);
    distribute_in_place(linear->weight, Layout(mesh, {Shard{0}}));
    for (const auto& tensor : {linear->weight, linear->weight * 2}) {
      std::ostringstream text;
      EXPECT_THAT(error_of([&] { text << tensor; }), HasSubstr("trireme::full(x)"));
      EXPECT_THAT(error_of([&] { torch::save(tensor, text); }), HasSubstr("trireme::full(x)"));
      EXPECT_THAT(error_of([&] { tensor.data_ptr<float>(); }), HasSubstr("trireme::to_local(x)"));
      EXPECT_THAT(error_of([&] { tensor.accessor<float, 2>(); }), HasSubstr("trireme::full(x)"));
    }
    std::ostringstream saved;
    EXPECT_THAT(error_of([&] { torch::save(linear, saved); }),
                HasSubstr("trireme::save_checkpoint"));
  });
}

}  // namespace
}  // namespace trireme
