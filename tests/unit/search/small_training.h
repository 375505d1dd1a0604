// SPDX-License-Identifier: Apache-2.0
// A small GPT for which plans are searched.
#pragma once

#include <models/gpt.h>
#include <trireme/parallel/deferred.h>
#include <trireme/search/search.h>

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace trireme::search {

struct SmallGpt {
  explicit SmallGpt(std::int64_t layers = 4, std::int64_t hidden = 64)
      : model(deferred([&] {
          return models::GPT(models::GPTOptions{
              .vocabulary = 128, .sequence = 32, .hidden = hidden, .layers = layers, .heads = 4});
        })) {}

  // A training of so many rows in a step.
  Training training(std::int64_t rows) {
    const auto meta = torch::TensorOptions().dtype(torch::kInt64).device(torch::kMeta);
    return {
        .module = model,
        .forward =
            [gpt = model](const std::vector<at::Tensor>& in) mutable -> std::vector<at::Tensor> {
          return {torch::cross_entropy_loss(gpt->forward(in[0]).flatten(0, 1), in[0].flatten())};
        },
        .inputs = {torch::empty({1, 32}, meta)},
        .rows = rows,
        .tensor_layouts =
            join({vocabulary_parallel("token_embedding"), column_parallel("*.attention.input"),
                  row_parallel("*.attention.output"), column_parallel("*.mlp_input"),
                  row_parallel("*.mlp_output")})};
  }

  models::GPT model;
};

}  // namespace trireme::search
