// SPDX-License-Identifier: Apache-2.0
// What happens to a sample with a given probability, or else not.
#pragma once

#include <trireme/data/detail/operation.h>
#include <trireme/data/transforms/elements.h>

#include <string_view>

namespace trireme::data::detail {

/// Draws one `uniform`: below the probability the sample is changed, else copied.
class RandomApply : public Operation {
 public:
  std::string_view name() const final { return name_; }

  void run(const Form& from, const std::byte* input, std::byte* output,
           Random& random) const final {
    random.uniform() < probability_ ? change(from, input, output)
                                    : copy_sample(from, input, output);
  }

 protected:
  /// Throws UsageError where the probability is not in [0, 1].
  /// @param name a literal.
  RandomApply(std::string_view name, double probability) : name_(name), probability_(probability) {
    check_probability(name, probability);
  }

 private:
  virtual void change(const Form& from, const std::byte* input, std::byte* output) const = 0;

  std::string_view name_;
  double probability_;
};

}  // namespace trireme::data::detail
