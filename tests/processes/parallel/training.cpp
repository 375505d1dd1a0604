// SPDX-License-Identifier: Apache-2.0
#include <tests/processes/parallel/training.h>

#include <chrono>
#include <random>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace trireme::test {
namespace {

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const std::string& name, const std::vector<torch::Tensor>& parameters) {
  if (name == "sgd")
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05));
  if (name == "momentum") {
    return std::make_unique<torch::optim::SGD>(
        parameters, torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-3));
  }
  if (name == "adam") return std::make_unique<torch::optim::Adam>(parameters, 0.01);
  throw std::invalid_argument("no optimizer " + name);
}

// Both sides draw dropout's masks from the same numbers, whichever process trains a micro-batch.
void backward(const SmallModel& model, int step, std::int64_t micro_batch) {
  torch::manual_seed(static_cast<std::uint64_t>(7 + 100L * step + micro_batch));
  model.loss(step, micro_batch).backward();
}

State state_of(const torch::nn::Module& module) {
  State state;
  for (const auto& item : module.named_parameters()) {
    state.names.push_back(item.key());
    state.tensors.push_back(item.value().detach().clone());
  }
  state.num_parameters = state.names.size();
  for (const auto& item : module.named_buffers()) {
    state.names.push_back(item.key());
    state.tensors.push_back(item.value().clone());
  }
  return state;
}

std::vector<torch::Tensor> copies(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> all;
  for (const torch::Tensor& tensor : tensors) all.push_back(tensor.clone());
  return all;
}

void add_gradients(std::vector<torch::Tensor>& totals,
                   const std::vector<torch::Tensor>& parameters) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const torch::Tensor& gradient = parameters[i].grad();
    totals[i] = totals[i].defined() ? totals[i] + gradient : gradient.clone();
  }
}

void dawdle(std::minstd_rand& random) {
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 600));
}

}  // namespace

std::string to_string(const Subject& subject) {
  std::ostringstream text;
  text << subject.model << ", " << subject.optimizer << ", " << subject.micro_batches
       << " micro-batches";
  return text.str();
}

std::string to_string(const Variant& variant) {
  std::ostringstream text;
  text << "ZeRO level " << variant.zero_level << ", buckets of " << variant.bucket_bytes
       << (variant.is_delayed ? ", delayed" : "");
  return text.str();
}

State initial_state(const std::string& model) {
  return state_of(*make_small_model(model, 1).module);
}

State train_alone(const Subject& subject, int ranks, RankOrder order) {
  const SmallModel model = make_small_model(subject.model, 1);
  const auto parameters = model.module->parameters();
  const auto buffers = model.module->buffers();
  const auto optimizer = make_optimizer(subject.optimizer, parameters);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<torch::Tensor> totals(parameters.size());
    for (int turn = 0; turn < ranks; ++turn) {
      const int rank = order == RankOrder::kForward ? turn : ranks - 1 - turn;
      // In training, batch norm writes running statistics and does not read them.
      const std::vector<torch::Tensor> before = copies(buffers);
      optimizer->zero_grad();
      for (std::int64_t i = 0; i < subject.micro_batches; ++i)
        backward(model, step, rank * subject.micro_batches + i);
      add_gradients(totals, parameters);
      if (rank == 0) continue;
      for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(before[i]);
    }
    for (std::size_t i = 0; i < parameters.size(); ++i)
      parameters[i].mutable_grad() = totals[i] / (ranks * subject.micro_batches);
    optimizer->step();
  }
  return state_of(*model.module);
}

State train_plainly(const Subject& subject, int ranks) {
  const SmallModel model = make_small_model(subject.model, 1);
  const auto optimizer = make_optimizer(subject.optimizer, model.module->parameters());
  const std::int64_t batches = ranks * subject.micro_batches;
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    for (std::int64_t i = 0; i < batches; ++i) backward(model, step, i);
    if (batches > 1) {
      for (const torch::Tensor& parameter : model.module->parameters())
        parameter.grad().div_(batches);
    }
    optimizer->step();
  }
  return state_of(*model.module);
}

State train_parallel(const Subject& subject, const Variant& variant, const comm::Group& group) {
  // Rank 0's initial values count.
  const SmallModel model =
      make_small_model(subject.model, 1 + static_cast<std::uint64_t>(group.rank()));
  const auto optimizer = make_optimizer(subject.optimizer, model.module->parameters());
  Parallelized parallelized = parallelize(*model.module,
                                          {.micro_batches = subject.micro_batches,
                                           .bucket_bytes = variant.bucket_bytes,
                                           .first_bucket_bytes = variant.bucket_bytes,
                                           .zero_level = variant.zero_level},
                                          group);
  parallelized.shard(*optimizer);
  std::minstd_rand random(static_cast<unsigned>(group.rank()));
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    for (std::int64_t i = 0; i < subject.micro_batches; ++i) {
      if (variant.is_delayed) dawdle(random);
      backward(model, step, group.rank() * subject.micro_batches + i);
    }
    if (variant.is_delayed) dawdle(random);
    optimizer->step();
  }
  return state_of(*model.module);
}

bool is_same(const torch::Tensor& one, const torch::Tensor& other) {
  const auto bytes = [](const torch::Tensor& tensor) {
    return tensor.flatten().view(torch::kByte);
  };
  return one.sizes() == other.sizes() && torch::equal(bytes(one), bytes(other));
}

}  // namespace trireme::test
