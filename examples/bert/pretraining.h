// SPDX-License-Identifier: Apache-2.0
// What both programs of this folder share: settings, data, network, loss and optimizer of
// pre-training.
#pragma once

#include <models/bert.h>
#include <trireme/comm/world.h>
#include <trireme/data/batch.h>
#include <trireme/data/text/bert_pairs.h>
#include <trireme/optim/learning_rate_schedule.h>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace examples {

struct PretrainingOptions {
  std::vector<std::string> texts;
  std::string data = "bert_data";
  std::int64_t vocabulary = 4000;
  std::int64_t epochs = 10;
  std::int64_t batch = 16;
  std::int64_t sequence = 64;
  std::int64_t hidden = 128;
  std::int64_t layers = 2;
  std::int64_t heads = 4;
  std::string optimizer = "adamw";
  double learning_rate = 1e-3;
  double clip_norm = 1.0;
  std::uint64_t seed = 1;  // of weights, dropout and the order of pairs
};

void add_options(CLI::App& app, PretrainingOptions& options);

/// The pairs of sentences in `options.data`. If texts are given, rank 0 makes the folder of them
/// first. Collective.
std::shared_ptr<const trireme::data::BertPairs> open_pairs(const PretrainingOptions& options,
                                                           const trireme::World& world);

models::BERTOptions network_options(const PretrainingOptions& options,
                                    const trireme::data::BertPairs& pairs);

/// The loss of masked tokens plus that of the next sentence.
torch::Tensor pretraining_loss(models::BERT& network, const trireme::data::Batch& batch);

/// AdamW or LAMB. Biases and norms have no weight decay, and LAMB steps them as Adam does.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const torch::nn::Module& network,
                                                        const std::string& kind,
                                                        double learning_rate);

/// Grows over a tenth of the steps, and falls to 0 in the last one, as BERT's does.
trireme::LearningRateSchedule warm_up_and_decay(double highest, std::int64_t steps);

/// The loss of the next sentence for somebody who knows only how many of the first `count` pairs
/// follow.
double loss_of_guessing_order(const trireme::data::BertPairs& pairs, std::int64_t count);

}  // namespace examples
