// SPDX-License-Identifier: Apache-2.0
// Tensor and data parallelism together: a language model, whose class knows nothing of it, is cut
// inside its layers among some ranks, and each such group of ranks trains on its own part of the
// data. All that says so is the plan.
#include <models/bert.h>
#include <models/gpt.h>
#include <trireme/optim/gradients.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/trireme.h>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include <functional>
#include <iostream>
#include <memory>
#include <string>

constexpr std::int64_t kVocabulary = 53;
constexpr std::int64_t kSequence = 16;
constexpr std::int64_t kRows = 16;  // of all ranks together

struct Batch {
  torch::Tensor tokens;   // [rows, sequence]
  torch::Tensor targets;  // likewise; -100 where nothing is to be told
};

// Rows that count on by a step of their own, modulo the vocabulary.
torch::Tensor counting_rows(int step) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(step));
  const auto starts = torch::randint(1, kVocabulary, {kRows, 1}, generator, torch::kInt64);
  const auto strides = torch::randint(1, 4, {kRows, 1}, generator, torch::kInt64);
  return (starts + strides * torch::arange(kSequence + 1)).remainder(kVocabulary - 1) + 1;
}

// What a GPT learns: the next token.
Batch next_token(int step) {
  const auto rows = counting_rows(step);
  return {rows.narrow(1, 0, kSequence), rows.narrow(1, 1, kSequence)};
}

// What a BERT learns: every third token, in whose place it sees 0.
Batch masked_tokens(int step) {
  const auto rows = counting_rows(step).narrow(1, 0, kSequence);
  const auto is_masked = torch::arange(kSequence).add(step).remainder(3).eq(0);
  return {rows.masked_fill(is_masked, 0), rows.masked_fill(is_masked.logical_not(), -100)};
}

// Columns, then rows: one sum over the ranks for each attention and each MLP.
trireme::ParameterLayouts layouts_of(const std::string& network) {
  using trireme::column_parallel;
  using trireme::row_parallel;
  using trireme::vocabulary_parallel;
  if (network == "gpt") {
    return trireme::join({vocabulary_parallel("token_embedding"), vocabulary_parallel("head"),
                          column_parallel("*.attention.input"), row_parallel("*.attention.output"),
                          column_parallel("*.mlp_input"), row_parallel("*.mlp_output")});
  }
  return trireme::join({vocabulary_parallel("token_embedding"),
                        {{"head_bias", {{"tensor", trireme::Shard{0}}}}},
                        column_parallel("*.attention.[qkv]*"),
                        row_parallel("*.attention.output"),
                        column_parallel("*.mlp_input"),
                        row_parallel("*.mlp_output")});
}

struct Network {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(const torch::Tensor&)> forward;
  Batch (*batch)(int step);
};

Network make_network(const std::string& name) {
  if (name == "gpt") {
    models::GPT gpt(models::GPTOptions{.vocabulary = kVocabulary,
                                       .sequence = kSequence,
                                       .hidden = 64,
                                       .layers = 2,
                                       .heads = 4,
                                       .dropout = 0.1});
    return {gpt.ptr(), [gpt](const auto& tokens) mutable { return gpt->forward(tokens); },
            next_token};
  }
  models::BERT bert(models::BERTOptions{.vocabulary = kVocabulary,
                                        .sequence = kSequence,
                                        .hidden = 64,
                                        .layers = 2,
                                        .heads = 4,
                                        .dropout = 0.0});
  return {bert.ptr(), [bert](const auto& tokens) mutable { return bert->forward(tokens); },
          masked_tokens};
}

int run(const std::string& name, std::int64_t tensor, int steps) {
  const auto world = trireme::init();
  torch::manual_seed(1);
  Network network = make_network(name);
  std::int64_t elements = 0;
  for (const auto& parameter : network.module->parameters()) elements += parameter.numel();

  trireme::Plan plan;
  plan.mesh = {{"data", world.size / tensor}, {"tensor", tensor}};
  plan.layouts = layouts_of(name);
  auto parallel = trireme::parallelize(*network.module, plan, world.group);
  torch::optim::AdamW optimizer(network.module->parameters(), 2e-3);

  std::int64_t own = 0;
  for (const auto& parameter : network.module->parameters()) {
    own += trireme::to_local(parameter.detach()).numel();
  }
  if (world.is_first()) {
    std::cout << name << " on data=" << world.size / tensor << ", tensor=" << tensor
              << ": a rank holds " << own << " of " << elements << " elements" << std::endl;
  }

  const auto part = trireme::data_part(plan, world.group);
  double first = 0;
  double loss_of_all = 0;
  for (int step = 0; step < steps; ++step) {
    const Batch batch = network.batch(step);
    const auto mine = [&](const torch::Tensor& rows) {
      return rows.narrow(0, part.index * (kRows / part.count), kRows / part.count);
    };
    optimizer.zero_grad();
    const auto logits = network.forward(mine(batch.tokens));
    const auto loss =
        torch::nn::functional::cross_entropy(logits.flatten(0, 1), mine(batch.targets).flatten());
    parallel.add_to_step(loss.detach());
    loss.backward();
    trireme::clip_by_global_norm(optimizer, 1.0, parallel.sharing());
    optimizer.step();
    loss_of_all = parallel.sum_of_step() / static_cast<double>(part.count);
    if (step == 0) first = loss_of_all;
    if (world.is_first() && (step + 1) % (steps / 4) == 0) {
      std::cout << "step " << step + 1 << ", loss " << loss_of_all << std::endl;
    }
  }
  const bool fell = loss_of_all < 0.5 * first;
  if (world.is_first()) {
    std::cout << "the loss " << (fell ? "fell" : "DID NOT FALL") << " from " << first << " to "
              << loss_of_all << std::endl;
  }
  return fell ? 0 : 1;
}

int main(int argc, char** argv) {
  std::string network = "gpt";
  std::int64_t tensor = 1;
  int steps = 400;
  CLI::App app("Trains a small GPT or BERT, cut inside its layers, on parts of the data");
  app.add_option("--network", network, "gpt or bert")
      ->check(CLI::IsMember({"gpt", "bert"}))
      ->capture_default_str();
  app.add_option("--tensor", tensor, "Ranks that a layer is cut among; divides their number")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  app.add_option("--steps", steps, "Steps to train")
      ->check(CLI::Range(4, 100000))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    return run(network, tensor, steps);
  } catch (const std::exception& error) {
    std::cerr << "tensor_parallel: " << trireme::message_of(error) << '\n';
    return 1;
  }
}
