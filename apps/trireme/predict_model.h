// SPDX-License-Identifier: Apache-2.0
// The families of models that `trireme predict` knows.
#pragma once

#include <trireme/graph/capture.h>
#include <trireme/plan/parameter_layouts.h>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::apps {

/// A model without memory, and what a step of it computes.
struct PredictedModel {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<at::Tensor> inputs;  ///< of one micro-batch, on meta
  graph::Forward forward;          ///< runs one micro-batch and returns the loss
  /// How Megatron-LM shards the family along an axis `tensor`. Mixtures have whole experts on each
  /// rank.
  ParameterLayouts tensor_layouts;
  std::int64_t layers = 0;          ///< number of blocks, `blocks.0` and so on; 0: it has none
  std::int64_t tokens_per_row = 1;  ///< tokens of a row; 1 for images
};

/// Makes a model of a family.
/// @param family `gpt`, `llama`, `bert`, `mixture`, `vit` or `resnet`.
/// @param settings such as `layers=96`. Throws ConfigError for an unknown one, with the nearest.
/// @param rows the rows of a micro-batch.
/// @param dtype of parameters and activations.
PredictedModel make_predicted_model(const std::string& family,
                                    const std::vector<std::string>& settings, std::int64_t rows,
                                    at::ScalarType dtype);

/// Returns the dtype with the given name, such as `bfloat16`. Throws ConfigError for another.
at::ScalarType dtype_of(const std::string& name);

}  // namespace trireme::apps
