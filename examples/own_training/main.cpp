// SPDX-License-Identifier: Apache-2.0
// A data set, a callback and a training of one's own, which goes on where it was stopped.
#include <trireme/trireme.h>

#include <torch/torch.h>

#include <cmath>
#include <iostream>

// Points on the two arms of a spiral; `shift` moves them along.
struct Spiral final : trireme::data::Dataset {
  explicit Spiral(double by) : shift(by) {}
  std::int64_t size() const override { return 2000; }
  const std::vector<std::string>& columns() const override { return names; }
  std::vector<at::Tensor> get(std::int64_t index) const override {
    const double part = std::sqrt((static_cast<double>(index) + shift) / 2000);
    const double angle = M_PI * (3 * part + static_cast<double>(index % 2));
    return {torch::tensor({part * std::cos(angle), part * std::sin(angle)}, torch::kFloat),
            torch::tensor(index % 2)};
  }
  double shift;
  std::vector<std::string> names{"point", "arm"};
};

// The best accuracy of the whole run, what came before a stop included.
struct BestAccuracy final : trireme::Callback {
  void on_evaluation_end(const trireme::EvaluationEndContext& end) override {
    best = std::max(best, end.evaluation.accuracy.value_or(0));
    end.run.log("best_accuracy", best);
  }
  std::string state() const override { return std::to_string(best); }
  void restore(const std::string& state) override { best = std::stod(state); }
  double best = 0;
};

int main(int argc, char** argv) try {
  const trireme::checkpoint::SaveOptions save{.folder = argc > 1 ? argv[1] : "runs/spiral"};
  const auto world = trireme::init();
  torch::manual_seed(1);
  auto points = trireme::data::DataLoader(std::make_shared<Spiral>(0)).shuffle(1).batch(50);
  auto others = trireme::data::DataLoader(std::make_shared<Spiral>(0.5)).batch(100);
  torch::nn::Sequential network(torch::nn::Linear(2, 128), torch::nn::Tanh(),
                                torch::nn::Linear(128, 128), torch::nn::Tanh(),
                                torch::nn::Linear(128, 2));
  torch::optim::Adam optimizer(network->parameters(), 0.01);
  trireme::Model model(network, trireme::CrossEntropy(), optimizer, {.group = world.group});
  if (const auto last = trireme::checkpoint::latest(save.folder, save.prefix)) model.resume(*last);
  BestAccuracy best;
  trireme::Checkpoint checkpoint({.save = save, .every_epochs = 1});
  trireme::JsonlWriter writer({.folder = save.folder});
  const int epochs = argc > 2 ? std::stoi(argv[2]) : 10;
  model.fit(points, others, {.epochs = epochs, .callbacks = {best, checkpoint, writer}});
  if (world.is_first()) std::cout << "best accuracy: " << best.best << '\n';
} catch (const std::exception& error) {
  std::cerr << trireme::message_of(error) << '\n';
  return 1;
}
