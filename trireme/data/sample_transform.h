// SPDX-License-Identifier: Apache-2.0
// Transforms of several columns of a sample at once, for DataLoader::map_columns.
#pragma once

#include <trireme/data/philox.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme::data {

/// A named function of some columns of one sample. Cheap to copy; const methods may be called
/// concurrently.
class SampleTransform {
 public:
  /// A function that takes tensors of a sample and returns one tensor for each resulting column.
  ///
  /// The tensors come in the order in which DataLoader::map_columns() names the columns. The
  /// function owns them and may change and return them. The data loader calls it on its worker
  /// threads, concurrently if there are several, with autograd disabled. `random` gives random
  /// numbers that belong to this sample.
  using Function =
      std::function<std::vector<at::Tensor>(std::vector<at::Tensor> sample, Random& random)>;

  /// Makes a transform of a function. Throws UsageError if the function is empty.
  /// @param name the name of the transform in error messages.
  /// @param function the function to apply.
  SampleTransform(std::string name, Function function);

  /// Makes a transform of a lambda `(std::vector<at::Tensor>, Random&) -> std::vector<at::Tensor>`.
  template <typename Callable>
    requires std::is_invocable_r_v<std::vector<at::Tensor>, Callable, std::vector<at::Tensor>,
                                   Random&>
  SampleTransform(Callable callable)  // NOLINT(google-explicit-constructor)
      : SampleTransform("a function of the program", Function(std::move(callable))) {}
  /// Makes a transform of a lambda `(std::vector<at::Tensor>) -> std::vector<at::Tensor>`.
  template <typename Callable>
    requires(std::is_invocable_r_v<std::vector<at::Tensor>, Callable, std::vector<at::Tensor>> &&
             !std::is_invocable_v<Callable, std::vector<at::Tensor>, Random&>)
  SampleTransform(Callable callable)  // NOLINT(google-explicit-constructor)
      : SampleTransform(
            "a function of the program",
            [callable = std::move(callable)](auto&& sample, Random&) -> std::vector<at::Tensor> {
              return callable(std::forward<decltype(sample)>(sample));
            }) {}

  /// Returns the name that error messages use.
  const std::string& name() const { return name_; }
  /// Returns the function to apply.
  const Function& function() const { return function_; }

 private:
  std::string name_;
  Function function_;
};

}  // namespace trireme::data
