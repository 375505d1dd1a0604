// SPDX-License-Identifier: Apache-2.0
// Functions that recompute cannot run: the compiler used to speak of constraints alone.
#include <trireme/parallel/recompute/recompute.h>

#include <memory>

namespace trireme {

void run(const at::Tensor& one, const std::vector<at::Tensor>& several) {
  const auto of_one = [](const at::Tensor& x) { return x; };
  const auto of_several = [](const std::vector<at::Tensor>& all) { return all; };
  const auto count = [](const at::Tensor& x) { return x.dim(); };
  recompute(of_one, one);
  recompute(of_several, several);
  recompute(of_several, one);  // refused
  recompute(of_one, several);  // refused
  recompute(count, one);       // refused
}

}  // namespace trireme
