// SPDX-License-Identifier: Apache-2.0
// A strategy for each operator: into how many parts every dim of every input is cut. The functions
// below are also what one process runs: on plain tensors strategies do nothing.
#include <trireme/base/exception_text.h>
#include <trireme/comm/world.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/tensor/operator_strategy.h>

#include <torch/torch.h>

#include <cmath>
#include <iostream>
#include <string>
#include <vector>

using trireme::with_strategy;

struct Network {
  torch::Tensor first;   // [6, 16]
  torch::Tensor second;  // [16, 4]
};

struct Outcome {
  torch::Tensor hidden, scores, loss;
};

// On four devices: rows of the input, columns of the second matrix, and rows again for the loss.
Outcome two_products(const torch::Tensor& x, const torch::Tensor& labels, const Network& network) {
  Outcome outcome;
  outcome.hidden = with_strategy({{4, 1}, {1, 1}}, [&] { return torch::matmul(x, network.first); });
  outcome.scores = with_strategy({{1, 1}, {1, 4}},
                                 [&] { return torch::matmul(outcome.hidden, network.second); });
  outcome.loss = with_strategy({{4, 1}, {4}},
                               [&] { return torch::cross_entropy_loss(outcome.scores, labels); });
  return outcome;
}

// On two devices, or twice on four: input [16, 32] and weight [32, 16] cut along the sum, whose
// result is cut by rows.
Outcome product_and_relu(const torch::Tensor& x, const torch::Tensor& weight) {
  Outcome outcome;
  outcome.hidden = with_strategy({{1, 2}, {2, 1}}, [&] { return torch::matmul(x, weight); });
  outcome.scores = with_strategy({{2, 1}}, [&] { return torch::relu(outcome.hidden); });
  outcome.loss = outcome.scores.mean();
  return outcome;
}

// Compares numbers, and prints them on rank 0.
class Report {
 public:
  explicit Report(bool is_first) : is_first_(is_first) {}

  void say(const std::string& line) const {
    if (is_first_) std::cout << line << std::endl;
  }

  void compare(const std::string& what, double loss, double alone) {
    say("  loss " + std::to_string(loss) + what);
    agree_ = agree_ && std::abs(loss - alone) < 1e-5;
  }

  void show(const Outcome& outcome) const {
    say("  " + trireme::describe(outcome.hidden) + "\n  " + trireme::describe(outcome.scores));
  }

  bool agree() const { return agree_; }

 private:
  bool is_first_;
  bool agree_ = true;
};

int main() try {
  const auto world = trireme::init();
  const auto mesh = trireme::devices_mesh(world.group);
  torch::manual_seed(1);  // the same numbers on every rank
  const auto x = torch::randn({8, 6});
  const auto labels = x.narrow(1, 0, 4).argmax(1);
  const Network plain = {torch::randn({6, 16}), torch::randn({16, 4})};
  const Network cut = {trireme::full_batch(plain.first, mesh).requires_grad_(),
                       trireme::full_batch(plain.second, mesh).requires_grad_()};
  Report report(world.is_first());

  report.say("two products, cut as {{4, 1}, {1, 1}} and {{1, 1}, {1, 4}}");
  const double alone = two_products(x, labels, plain).loss.item<double>();
  const auto whole_labels = trireme::full_batch(labels, mesh);
  const auto outcome = two_products(trireme::full_batch(x, mesh), whole_labels, cut);
  report.show(outcome);
  report.compare(", every rank given the full batch", outcome.loss.item<double>(), alone);
  const auto slice = x.chunk(world.size)[static_cast<std::size_t>(world.rank)];
  const auto of_slices = two_products(trireme::batch_of_slices(slice, mesh), whole_labels, cut);
  report.compare(", each rank given its slice", of_slices.loss.item<double>(), alone);

  report.say("a product and relu, cut as {{1, 2}, {2, 1}} and {{2, 1}}");
  const auto input = torch::randn({16, 32});
  const auto weight = torch::randn({32, 16});
  const double relu_alone = product_and_relu(input, weight).loss.item<double>();
  const auto relu =
      product_and_relu(trireme::full_batch(input, mesh), trireme::full_batch(weight, mesh));
  report.show(relu);
  report.compare("", relu.loss.item<double>(), relu_alone);

  // Gradients follow by themselves.
  torch::optim::SGD optimizer({cut.first, cut.second}, 0.05);
  double loss = 0;
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    const auto trained = two_products(trireme::full_batch(x, mesh), whole_labels, cut).loss;
    trained.backward();
    optimizer.step();
    loss = trained.item<double>();
  }
  const bool fell = loss < 0.5 * alone;
  report.say(std::string("the loss ") + (fell ? "fell" : "DID NOT FALL") + " to " +
             std::to_string(loss) + " in 20 steps");
  report.say(report.agree() ? "all losses are those of one process"
                            : "losses DIFFER from those of one process");
  return fell && report.agree() ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << "operator_strategies: " << trireme::message_of(error) << '\n';
  return 1;
}
