// SPDX-License-Identifier: Apache-2.0
// Pre-trains the same BERT by a loop of its own, in which every part of a data-parallel step in
// half precision is a line: gradients, clipping, reduction, a check for overflow, loss scale,
// optimizer.
#include "examples/bert/pretraining.h"
#include "examples/report.h"
#include <trireme/data/data_loader.h>
#include <trireme/optim/autocast.h>
#include <trireme/trireme.h>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include <iostream>

namespace data = trireme::data;

int run(const examples::PretrainingOptions& options, double initial_scale) {
  const auto world = trireme::init();
  const auto pairs = examples::open_pairs(options, world);
  auto batches = data::bert_batches(pairs);
  batches.shuffle(options.seed)
      .shard({.index = world.rank, .count = world.size, .remainder = data::Remainder::kDrop})
      .batch(options.batch, data::LastBatch::kDrop)
      .prefetch(2);

  torch::manual_seed(options.seed);  // the same initial values on all ranks
  models::BERT network(examples::network_options(options, *pairs));
  torch::manual_seed(options.seed + 1 +
                     static_cast<std::uint64_t>(world.rank));  // dropout of each rank's own
  const auto optimizer =
      examples::make_optimizer(*network, options.optimizer, options.learning_rate);
  const std::int64_t steps = options.epochs * batches.batches();
  const auto rates = examples::warm_up_and_decay(options.learning_rate, steps);
  trireme::GradientReducer reducer(*network, world.group);  // the mean over all ranks
  trireme::LossScale scale({.initial = initial_scale, .backoff = 0x1p-8});

  std::vector<double> losses;
  std::int64_t step = 0;
  std::int64_t skipped = 0;
  for (std::int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    const auto stream = batches.open(epoch);
    double sum = 0;
    while (const auto batch = stream->next()) {
      ++step;
      for (auto& group : optimizer->param_groups()) group.options().set_lr(rates(step - skipped));
      optimizer->zero_grad();
      torch::Tensor loss;
      {
        const trireme::Autocast autocast(at::kCPU, at::kBFloat16);
        loss = examples::pretraining_loss(network, *batch);
      }
      scale.scale(loss).backward();  // the gradients of this rank, times the scale
      trireme::clip_by_global_norm(*optimizer, options.clip_norm * scale.value());
      reducer.reduce();
      const bool is_finite = trireme::all_finite(*optimizer);  // the same on all ranks now
      if (is_finite) {
        scale.divide(*optimizer);
        optimizer->step();
      } else {
        ++skipped;
      }
      scale.adjust(is_finite);
      sum += loss.item<double>();
    }
    losses.push_back(sum / static_cast<double>(batches.batches()));
    if (world.is_first())
      std::cout << "epoch " << epoch + 1 << ", mean loss " << losses.back() << std::endl;
  }
  const bool is_same = examples::same_on_all_ranks(network->parameters(), world.group);
  if (world.is_first()) {
    std::cout << skipped << " of " << steps << " steps were skipped, the scale is now "
              << scale.value() << '\n'
              << world.size << (world.size == 1 ? " rank has " : " ranks have ")
              << (is_same ? "the same" : "DIFFERENT") << " parameters" << std::endl;
  }
  return is_same ? 0 : 1;
}

int main(int argc, char** argv) {
  examples::PretrainingOptions options;
  double initial_scale = 65536;
  CLI::App app("Pre-trains a BERT by a loop written by hand");
  add_options(app, options);
  app.add_option("--loss-scale", initial_scale, "Initial loss scale")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    return run(options, initial_scale);
  } catch (const std::exception& error) {
    std::cerr << "bert_by_hand: " << trireme::message_of(error) << '\n';
    return 1;
  }
}
