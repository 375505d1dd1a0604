// SPDX-License-Identifier: Apache-2.0
// What a data loader does to several columns of each sample at once.
#pragma once

#include <trireme/data/philox.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme::data {

/// A function of some columns of one sample. A cheap value; const methods may be called
/// concurrently.
class SampleTransform {
 public:
  /// It gets tensors of its own, which it may change and return, in the order in which
  /// DataLoader::map_columns names them, and the random numbers of this sample; it returns one
  /// tensor for each resulting column. It is called from the data loader's workers, concurrently
  /// where there are several, without autograd.
  using Function =
      std::function<std::vector<at::Tensor>(std::vector<at::Tensor> sample, Random& random)>;

  /// @param name what error messages call it. Throws UsageError where there is no function.
  SampleTransform(std::string name, Function function);

  /// Takes a lambda `(std::vector<at::Tensor>) -> std::vector<at::Tensor>`, or one with a second
  /// parameter `Random&`, as it is.
  template <typename Callable>
    requires std::is_invocable_r_v<std::vector<at::Tensor>, Callable, std::vector<at::Tensor>,
                                   Random&>
  SampleTransform(Callable callable)  // NOLINT(google-explicit-constructor)
      : SampleTransform("a function of the program", Function(std::move(callable))) {}
  template <typename Callable>
    requires(std::is_invocable_r_v<std::vector<at::Tensor>, Callable, std::vector<at::Tensor>> &&
             !std::is_invocable_v<Callable, std::vector<at::Tensor>, Random&>)
  SampleTransform(Callable callable)  // NOLINT(google-explicit-constructor)
      : SampleTransform(
            "a function of the program",
            [callable = std::move(callable)](auto&& sample, Random&) -> std::vector<at::Tensor> {
              return callable(std::forward<decltype(sample)>(sample));
            }) {}

  const std::string& name() const { return name_; }
  const Function& function() const { return function_; }

 private:
  std::string name_;
  Function function_;
};

}  // namespace trireme::data
