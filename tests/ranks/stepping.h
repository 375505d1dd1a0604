// SPDX-License-Identifier: Apache-2.0
// Steps of an optimizer that wait for the other ranks, or are validated afterwards, and what is
// compared of the two.
#pragma once

#include <trireme/optim/gradients.h>
#include <trireme/optim/loss_scale.h>
#include <trireme/optim/post_validation.h>
#include <trireme/optim/state_fields.h>
#include <trireme/tensor/distributed_tensor.h>

#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <torch/torch.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::test {

/// What an optimizer steps on this rank and what it keeps, as it is now.
struct Snapshot {
  std::vector<torch::Tensor> tensors;  ///< undefined where there is none
  std::vector<std::int64_t> numbers;
};

inline Snapshot snapshot_of(torch::optim::Optimizer& optimizer) {
  Snapshot all;
  const auto take = [&](const torch::Tensor& tensor) {
    const bool is_distributed = tensor.defined() && has_layout(tensor);
    const torch::Tensor own = is_distributed ? to_local(tensor.detach()) : tensor;
    all.tensors.push_back(own.defined() ? own.detach().clone() : own);
  };
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& stepped : group.params()) {
      take(is_trained_elsewhere(stepped) ? torch::Tensor() : stepped);
      const auto found = optimizer.state().find(stepped.unsafeGetTensorImpl());
      all.numbers.push_back(found == optimizer.state().end() ? 0 : 1);
      if (found == optimizer.state().end()) continue;
      const detail::StateFields fields = detail::fields_of(*found->second);
      all.numbers.push_back(fields.step == nullptr ? -1 : *fields.step);
      for (const torch::Tensor* tensor : fields.tensors) take(*tensor);
    }
  }
  return all;
}

/// Also of what is not a number.
inline bool has_same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.defined() != b.defined() || !a.defined()) return a.defined() == b.defined();
  const auto bytes = [](const torch::Tensor& tensor) {
    return tensor.detach().contiguous().flatten().view(torch::kByte);
  };
  return a.sizes() == b.sizes() && torch::equal(bytes(a), bytes(b));
}

inline void expect_same_bits(const Snapshot& got, const Snapshot& expected,
                             const std::string& what) {
  EXPECT_EQ(got.numbers, expected.numbers) << what;
  ASSERT_EQ(got.tensors.size(), expected.tensors.size()) << what;
  for (std::size_t i = 0; i < got.tensors.size(); ++i) {
    EXPECT_TRUE(has_same_bits(got.tensors[i], expected.tensors[i])) << what << ", tensor " << i;
  }
}

/// What is asked of gradients before a step holds.
struct Demands {
  std::optional<double> max_norm{};
  bool skip_not_finite = false;
  bool has_loss_scale = false;
};

/// A loop's steps, by one way or the other.
class Stepping {
 public:
  enum class Way { kWaits, kValidates };

  Stepping(torch::optim::Optimizer& optimizer, const Demands& demands, Way way)
      : optimizer_(optimizer), demands_(demands) {
    if (way == Way::kWaits) return;
    validation_.emplace(
        optimizer, PostValidationOptions{.max_norm = demands.max_norm,
                                         .skip_not_finite = demands.skip_not_finite,
                                         .loss_scale = demands.has_loss_scale ? &scale_ : nullptr});
  }

  double scale() const { return demands_.has_loss_scale ? scale_.value() : 1; }

  void step(const Sharing& sharing) {
    if (validation_) return validation_->step(sharing);
    outcome_ = {};
    if (demands_.has_loss_scale) {
      outcome_.is_skipped = !scale_.unscale(optimizer_, sharing);
    } else if (demands_.skip_not_finite) {
      outcome_.is_skipped = !all_finite(optimizer_, sharing);
    }
    if (outcome_.is_skipped) return;
    if (demands_.max_norm) {
      outcome_.norm = clip_by_global_norm(optimizer_, *demands_.max_norm, sharing).item<double>();
    }
    optimizer_.step();
  }

  /// The optimizer, and what else a step changes.
  Snapshot finish() {
    if (validation_) {
      outcome_ = validation_->validate().value();
      num_taken_back += outcome_.is_taken_back ? 1 : 0;
      if (outcome_.is_skipped) outcome_.norm = 0;
    }
    num_skipped += outcome_.is_skipped ? 1 : 0;
    Snapshot all = snapshot_of(optimizer_);
    const LossScale::State scale = scale_.state();
    all.numbers.insert(all.numbers.end(),
                       {outcome_.is_skipped ? 1 : 0, std::bit_cast<std::int64_t>(outcome_.norm),
                        std::bit_cast<std::int64_t>(scale.value), scale.good_steps});
    return all;
  }

  int num_taken_back = 0;
  int num_skipped = 0;

 private:
  torch::optim::Optimizer& optimizer_;
  Demands demands_;
  LossScale scale_ = LossScale({.initial = 1024, .growth_interval = 3});
  std::optional<PostValidation> validation_;
  ValidatedStep outcome_;
};

/// Multiplies what the optimizer steps with: where it is to be clipped by much in some steps, and
/// by little in the others.
inline void resize_gradients(torch::optim::Optimizer& optimizer, int step, bool clips) {
  const double factor = clips && step % 3 == 0 ? 4096 : 0x1p-12;
  const torch::NoGradGuard no_grad;
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& stepped : group.params()) {
      if (stepped.grad().defined()) stepped.mutable_grad().mul_(factor);
    }
  }
}

/// Puts what is not finite into one element of the last gradient: the first may be of a weight that
/// several stages have, of which one rank's counts.
inline void spoil_a_gradient(torch::optim::Optimizer& optimizer, bool is_infinite) {
  const torch::NoGradGuard no_grad;
  torch::Tensor last;
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& stepped : group.params()) {
      if (stepped.grad().defined() && stepped.numel() > 0) last = stepped.grad();
    }
  }
  const double value = is_infinite ? std::numeric_limits<double>::infinity() : std::nan("");
  last.view({-1}).narrow(0, 0, 1).fill_(value);
}

/// As schedules do between two steps.
inline void set_rates(torch::optim::Optimizer& optimizer, int step) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(0.05 / (step + 1));
}

}  // namespace trireme::test
