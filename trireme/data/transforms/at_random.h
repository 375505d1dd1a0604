// SPDX-License-Identifier: Apache-2.0
// The base class of transforms that apply with a given probability.
#pragma once

#include <trireme/data/detail/operation.h>
#include <trireme/data/transforms/elements.h>

#include <string_view>

namespace trireme::data::detail {

/// Draws one `uniform` and changes the sample if it is below the probability; otherwise copies it.
class RandomApply : public Operation {
 public:
  std::string_view name() const final { return name_; }

  void run(const Form& from, const std::byte* input, std::byte* output,
           Random& random) const final {
    random.uniform() < probability_ ? change(from, input, output)
                                    : copy_sample(from, input, output);
  }

 protected:
  /// Stores name and probability. Throws UsageError if the probability is not in [0, 1].
  /// @param name a string literal.
  /// @param probability the probability of a change.
  RandomApply(std::string_view name, double probability) : name_(name), probability_(probability) {
    check_probability(name, probability);
  }

 private:
  virtual void change(const Form& from, const std::byte* input, std::byte* output) const = 0;

  std::string_view name_;
  double probability_;
};

}  // namespace trireme::data::detail
