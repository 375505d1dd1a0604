// SPDX-License-Identifier: Apache-2.0
// Trains ResNet-50 on CIFAR-10 in its binary version, with the usual preparation of the images,
// over as many processes as it is started with: validation, checkpoints, learning rates, records.
#include "examples/channels_last.h"
#include "examples/first_samples.h"
#include "examples/images.h"
#include "examples/resnet50_cifar10/options.h"
#include <models/resnet.h>
#include <trireme/data/cifar.h>
#include <trireme/report/number.h>
#include <trireme/trireme.h>

#include <torch/torch.h>

#include <iostream>
#include <optional>

namespace data = trireme::data;
using examples::Options;

data::DataLoader images(const Options& options, data::Split split, const trireme::Model& model) {
  const bool is_training = split == data::Split::kTrain;
  const auto all = options.synthetic > 0
                       ? examples::pictures(options.synthetic, is_training ? 1 : 2)
                       : data::cifar10(options.folder, split);
  const std::int64_t most = options.steps * options.batch * examples::batches_of_step(model);
  data::DataLoader loader(examples::first_samples(all, most));
  if (is_training) {
    options.shuffle_buffer > 0 ? loader.shuffle_buffer(options.shuffle_buffer, /*seed=*/1)
                               : loader.shuffle(/*seed=*/1);
    examples::shard(loader, model, data::Remainder::kWrap);
    loader.map("image", data::random_crop(32, 32, 4))
        .map("image", data::random_horizontal_flip())
        .repeat(options.repeat);
  } else {
    examples::shard(loader, model, data::Remainder::kUneven);  // no image counts twice
  }
  loader.map("image", data::resize(options.image_size, options.image_size))
      .map("image", data::rescale(1 / 255.0));
  if (is_training) {
    // An operation of the program's own: a little darker or brighter.
    loader.map("image", [](at::Tensor image, data::Random& random) {
      return image.mul_(0.9F + 0.2F * random.uniform());
    });
  }
  return loader.map("image", data::normalize({0.4914, 0.4822, 0.4465}, {0.2023, 0.1994, 0.2010}))
      .map("label", data::type_cast(torch::kLong))
      .batch(options.batch, is_training ? data::LastBatch::kDrop : data::LastBatch::kKeep)
      .prefetch(4);
}

trireme::LearningRateSchedule rates(const Options& options, std::int64_t steps_in_epoch) {
  const auto rest = (options.epochs - options.warm_up) * steps_in_epoch;
  const auto schedule = options.schedule == examples::Rates::kCosine && rest > 0
                            ? trireme::LearningRateSchedule::cosine(options.learning_rate, rest)
                            : trireme::LearningRateSchedule::constant(options.learning_rate);
  return options.warm_up > 0 ? schedule.after_warm_up(options.warm_up * steps_in_epoch) : schedule;
}

// Counts the FLOPs of an image in a batch of a rank: batch norm refuses single values.
double flops_per_image(const Options& options, models::ResNet& network) {
  const std::int64_t side = options.image_size;
  const torch::Tensor images = torch::zeros({options.batch, 3, side, side});
  const torch::Tensor labels = torch::zeros({options.batch}, torch::kLong);
  const auto loss = [&] { return trireme::CrossEntropy()(network(images), labels); };
  return trireme::predict::model_flops(*network, loss) / static_cast<double>(options.batch);
}

void print(const trireme::Evaluation& result, const trireme::TopK& top) {
  std::cout << "test loss " << trireme::report::fixed(result.loss, 4) << ", accuracy "
            << trireme::report::fixed(result.accuracy.value_or(0) * 100, 2) << " %, of the top 5 "
            << trireme::report::fixed(top.value() * 100, 2) << " %, of "
            << trireme::report::with_thousands(result.samples) << " images" << std::endl;
}

void run(const Options& options) {
  const auto world = trireme::init();
  torch::manual_seed(1);
  auto network = options.network == examples::Network::kResNet50 ? models::resnet50(/*classes=*/10)
                                                                 : models::resnet20();
  examples::use_channels_last(*network);
  torch::optim::SGD optimizer(network->parameters(),
                              torch::optim::SGDOptions(options.learning_rate).momentum(0.9));
  const bool records = !options.run.empty();
  std::optional<double> flops;
  if (records) flops = flops_per_image(options, network);
  trireme::TopK top(5);
  const trireme::Plan plan = examples::plan_for(options, *network, world.group);
  trireme::Model model(network, trireme::CrossEntropy(), optimizer,
                       {.group = world.group, .plan = plan, .metrics = {top}});
  const data::DataLoader training = images(options, data::Split::kTrain, model);
  const data::DataLoader test = images(options, data::Split::kTest, model);

  const trireme::checkpoint::SaveOptions newest{
      .folder = options.run, .prefix = "resnet", .keep = 3};
  const trireme::checkpoint::SaveOptions best{.folder = options.run, .prefix = "best"};
  const bool evaluates = !options.evaluate.empty();
  if (evaluates) model.resume(options.evaluate);
  if (options.resume) {
    if (const auto found = trireme::checkpoint::latest(newest.folder, newest.prefix)) {
      model.resume(*found);
      if (world.is_first()) std::cout << "going on from " << found->string() << std::endl;
    }
  }

  trireme::LearningRate schedule(optimizer,
                                 rates(options, training.batches() / plan.micro_batches));
  trireme::LossMonitor loss_monitor(options.every_steps);
  trireme::TimeMonitor time_monitor;
  trireme::LambdaCallback validation({.evaluation_end = [&](const auto& end) {
    if (end.run.rank == 0) print(end.evaluation, top);
  }});
  trireme::Callbacks callbacks{schedule, loss_monitor, time_monitor, validation};
  const std::filesystem::path folder = records ? options.run : ".";
  trireme::CsvWriter table({.folder = folder});
  trireme::JsonlWriter events(
      {.folder = folder, .every_steps = options.every_steps, .flops_per_sample = flops});
  trireme::PipelineTimelineWriter timeline({.folder = folder});
  trireme::BestCheckpoint best_checkpoint(
      {.save = best, .score = [](const trireme::EvaluationEndContext& end) {
         return -end.evaluation.accuracy.value_or(0);
       }});
  trireme::Checkpoint checkpoint({.save = newest, .every_epochs = 1});
  if (records) {
    callbacks.insert(callbacks.end(), {table, events, timeline, best_checkpoint, checkpoint});
  }
  if (!evaluates) {
    model.fit(training, test, {.epochs = options.epochs, .callbacks = callbacks});
    return;
  }
  const trireme::Evaluation result = model.evaluate(test);
  if (world.is_first()) print(result, top);
}

int main(int argc, char** argv) {
  Options options;
  try {
    if (const auto code = examples::read_options(argc, argv, options)) return *code;
    run(options);
  } catch (const std::exception& error) {
    std::cerr << "resnet50_cifar10: " << trireme::message_of(error) << '\n';
    return 1;
  }
  return 0;
}
