// SPDX-License-Identifier: Apache-2.0
// Names that fragments of docs/guide/data.md use: see extract.py.
#pragma once

#include <trireme/trireme.h>

#include <torch/torch.h>

#include <fstream>
#include <iostream>

namespace page_data {

extern trireme::data::DataLoader train;
extern trireme::data::DataLoader test;
extern trireme::data::DataLoader evaluation;
extern std::unique_ptr<trireme::data::BatchStream> stream;
extern std::shared_ptr<const trireme::data::Dataset> sentences;
extern std::int64_t rank;
extern std::int64_t world_size;
extern trireme::data::Audio sound;
at::Tensor forward(const at::Tensor& images);
void count(const at::Tensor& output, const at::Tensor& labels);
std::vector<at::Tensor> join(std::vector<at::Tensor> sample, trireme::data::Random& random);

}  // namespace page_data
