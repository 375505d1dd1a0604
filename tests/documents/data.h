// SPDX-License-Identifier: Apache-2.0
// Names that fragments of docs/guide/data.md use: see extract.py.
#pragma once

#include <trireme/trireme.h>

#include <torch/torch.h>

#include <fstream>
#include <iostream>

namespace page_data {

using namespace trireme::data;

extern DataLoader train;
extern DataLoader test;
extern DataLoader evaluation;
extern std::unique_ptr<BatchStream> stream;
extern std::shared_ptr<const Dataset> sentences;
extern std::int64_t rank;
extern std::int64_t world_size;
extern Audio sound;
at::Tensor forward(const at::Tensor& images);
void count(const at::Tensor& output, const at::Tensor& labels);
std::vector<at::Tensor> join(std::vector<at::Tensor> sample, Random& random);

}  // namespace page_data
