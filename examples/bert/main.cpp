// SPDX-License-Identifier: Apache-2.0
// Pre-trains a BERT on pairs of sentences, over as many processes as it is started with: masked
// tokens and the next sentence. With --classify it fine-tunes one on texts with labels.
#include "examples/bert/classify.h"
#include "examples/bert/pretrained_folder.h"
#include "examples/bert/pretraining.h"
#include "examples/training.h"
#include <trireme/comm/collectives.h>
#include <trireme/data/dataset_views.h>
#include <trireme/trireme.h>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <iostream>

namespace data = trireme::data;

struct Options : examples::PretrainingOptions, examples::PlanOptions {
  std::string run;
  std::int64_t save_every = 0;
};

// Returns the FLOPs of a pair, or nothing without a run to record them in.
std::optional<double> flops_of(const Options& options, const data::DataLoader& validation,
                               models::BERT& network) {
  if (options.run.empty()) return {};
  const auto batch = validation.open(0)->next();
  if (!batch) return {};
  const auto loss = [&] { return examples::pretraining_loss(network, *batch); };
  return trireme::predict::model_flops(*network, loss) / static_cast<double>(batch->rows());
}

// Returns the loss of the validation.
double train(const Options& options, const trireme::World& world, const data::BertPairs& pairs,
             const data::DataLoader& training, const data::DataLoader& validation,
             models::BERT& network) {
  const auto flops = flops_of(options, validation, network);
  const auto optimizer =
      examples::make_optimizer(*network, options.optimizer, options.learning_rate);
  const trireme::Plan plan = examples::plan_for(options, *network, world.group);
  trireme::Model model(
      [&](const data::Batch& batch) { return examples::pretraining_loss(network, batch); },
      network.ptr(), *optimizer,
      {.group = world.group,
       .plan = plan,
       .clip_norm = options.clip_norm,
       .deterministic = options.seed});

  const std::int64_t steps_in_epoch =
      std::max<std::int64_t>(1, training.batches() / examples::batches_of_step(model));
  const std::int64_t steps = options.epochs * steps_in_epoch;
  trireme::LearningRate rate(*optimizer, examples::warm_up_and_decay(options.learning_rate, steps));
  trireme::LossMonitor monitor(std::max<std::int64_t>(1, steps_in_epoch / 2));
  trireme::Callbacks callbacks{rate, monitor};

  const trireme::checkpoint::SaveOptions save{.folder = options.run, .prefix = "bert", .keep = 2};
  std::optional<trireme::Checkpoint> checkpoint;
  std::optional<trireme::JsonlWriter> events;
  std::optional<trireme::PipelineTimelineWriter> timeline;
  if (!options.run.empty()) {
    callbacks.emplace_back(checkpoint.emplace(
        trireme::CheckpointOptions{.save = save, .every_steps = options.save_every}));
    callbacks.emplace_back(events.emplace(
        trireme::JsonlWriterOptions{.folder = options.run,
                                    .tokens_per_sample = pairs.settings().sequence_length,
                                    .flops_per_sample = flops}));
    callbacks.emplace_back(
        timeline.emplace(trireme::PipelineTimelineWriterOptions{.folder = options.run}));
    const auto vocabulary = std::filesystem::path(options.data) / "vocab.txt";
    if (const auto newest = trireme::checkpoint::latest(save.folder, save.prefix)) {
      examples::check_same_vocabulary(options.run, vocabulary);
      model.resume(*newest);
    }
    trireme::comm::barrier(world.group);
    if (world.is_first()) {
      examples::write_description(options.run, examples::network_options(options, pairs),
                                  vocabulary, pairs.settings().lowercase);
    }
  }
  model.fit(training, validation,
            {.epochs = options.epochs, .callbacks = callbacks, .validate_every_epochs = 0});
  return model.evaluate(validation).loss;
}

void pretrain(const Options& options) {
  const auto world = trireme::init();
  torch::manual_seed(options.seed);
  const auto pairs = examples::open_pairs(options, world);
  const std::int64_t held_out = std::max<std::int64_t>(1, pairs->size() / 10);
  auto training = data::bert_batches(pairs, data::skip(pairs, held_out));
  training.shuffle(options.seed).batch(options.batch, data::LastBatch::kDrop).prefetch(2);
  auto validation = data::bert_batches(pairs, data::take(pairs, held_out)).batch(options.batch);

  models::BERT network(examples::network_options(options, *pairs));
  const double loss = train(options, world, *pairs, training, validation, network);
  if (!options.run.empty()) examples::write_weights(options.run, *network, world);
  if (!world.is_first()) return;
  const auto guessing = std::log(static_cast<double>(pairs->tokenizer().vocabulary_size())) +
                        examples::loss_of_guessing_order(*pairs, held_out);
  std::cout << "validation loss " << loss << ", by guessing " << guessing << std::endl;
}

int main(int argc, char** argv) {
  Options options;
  examples::ClassifyOptions classify;
  CLI::App app("Pre-trains a BERT on pairs of sentences, or fine-tunes one on texts with labels");
  add_options(app, static_cast<examples::PretrainingOptions&>(options));
  add_options(app, static_cast<examples::PlanOptions&>(options));
  app.add_option("--run", options.run,
                 "Folder for checkpoints, records and the network; a second start goes on");
  app.add_option("--save-every", options.save_every,
                 "Steps between checkpoints, beside those at the end of each epoch; 0 for none")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--classify", classify.file, "Fine-tune on lines of label<TAB>text instead")
      ->check(CLI::ExistingFile);
  app.add_option("--from", classify.from, "Folder of a pre-trained BERT, with --classify")
      ->check(CLI::ExistingDirectory);
  CLI11_PARSE(app, argc, argv);
  try {
    if (classify.file.empty()) {
      pretrain(options);
    } else {
      classify.epochs = options.epochs;
      classify.batch = options.batch;
      classify.learning_rate = options.learning_rate;
      examples::classify(classify);
    }
  } catch (const std::exception& error) {
    std::cerr << "bert: " << trireme::message_of(error) << '\n';
    return 1;
  }
  return 0;
}
