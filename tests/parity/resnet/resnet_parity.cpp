// SPDX-License-Identifier: Apache-2.0
// The C++ side of the parity test in this folder:
//   resnet_parity <resnet18|resnet50> <weights> <batch> <results>
// loads weights and running statistics that torchvision's network has, and computes in double
// precision what the network gives for the batch: in evaluation, and in a step of training with the
// gradients and the running statistics after it.
#include <models/resnet.h>
#include <trireme/checkpoint/safetensors.h>

#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

namespace {

using trireme::checkpoint::TensorMap;

void load(const std::string& name, torch::Tensor tensor, const TensorMap& weights) {
  const auto found = weights.find(name);
  if (found == weights.end()) throw std::runtime_error("no weight '" + name + "' of torchvision");
  if (found->second.sizes() != tensor.sizes()) {
    throw std::runtime_error("weight '" + name + "' of torchvision has another shape");
  }
  tensor.copy_(found->second);
}

models::ResNet make(const std::string& name) {
  if (name == "resnet18") return models::resnet18(10);
  if (name == "resnet50") return models::resnet50(10);
  throw std::runtime_error("no network '" + name + "'");
}

void run(const std::string& network, const std::string& weights_path, const std::string& batch_path,
         const std::string& results_path) {
  models::ResNet net = make(network);
  net->to(torch::kDouble);
  const TensorMap weights = trireme::checkpoint::read_safetensors(weights_path).tensors;
  std::size_t num_loaded = 0;
  {
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : net->named_parameters()) {
      load(parameter.key(), parameter.value(), weights);
      ++num_loaded;
    }
    for (const auto& buffer : net->named_buffers()) {
      load(buffer.key(), buffer.value(), weights);
      ++num_loaded;
    }
  }
  if (num_loaded != weights.size()) throw std::runtime_error("torchvision has more weights");

  const TensorMap batch = trireme::checkpoint::read_safetensors(batch_path).tensors;
  TensorMap results;
  net->eval();
  results["evaluation"] = net->forward(batch.at("images")).detach();
  net->train();
  const torch::Tensor logits = net->forward(batch.at("images"));
  torch::nn::functional::cross_entropy(logits, batch.at("labels")).backward();
  results["training"] = logits.detach();
  for (const auto& parameter : net->named_parameters()) {
    results["gradient." + parameter.key()] = parameter.value().grad();
  }
  for (const auto& buffer : net->named_buffers()) {
    results["after." + buffer.key()] = buffer.value();
  }
  trireme::checkpoint::write_safetensors(results_path, results);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 5) throw std::runtime_error("expected a network and three files");
  run(argv[1], argv[2], argv[3], argv[4]);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "resnet_parity: %s\n", error.what());
  return 1;
}
