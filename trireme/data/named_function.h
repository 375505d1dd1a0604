// SPDX-License-Identifier: Apache-2.0
// A function of the program with a name, which a data loader applies to samples or batches.
#pragma once

#include <trireme/base/error.h>
#include <trireme/data/philox.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme::data {

/// A named function of an item, such as a batch. Cheap to copy; const methods may be called
/// concurrently.
template <typename Item>
class NamedFunction {
 public:
  /// A function that takes an item on the CPU and returns the item to use instead.
  ///
  /// The function owns its argument and may change and return it. The data loader calls it on its
  /// worker threads, concurrently if there are several, with autograd disabled. `random` gives
  /// random numbers that belong to this item.
  using Function = std::function<Item(Item item, Random& random)>;

  /// Makes a transform of a function. Throws UsageError if the function is empty.
  /// @param name the name of the transform in error messages.
  /// @param function the function to apply.
  NamedFunction(std::string name, Function function)
      : name_(std::move(name)), function_(std::move(function)) {
    if (!function_)
      throw UsageError(join_message("the transform '", name_, "' has no function"), "give one");
  }

  /// Makes a transform of a lambda `(Item, Random&) -> Item`.
  template <typename Callable>
    requires std::is_invocable_r_v<Item, Callable, Item, Random&>
  NamedFunction(Callable callable)  // NOLINT(google-explicit-constructor)
      : NamedFunction("a function of the program", Function(std::move(callable))) {}
  /// Makes a transform of a lambda `(Item) -> Item`, which needs no random numbers.
  template <typename Callable>
    requires(std::is_invocable_r_v<Item, Callable, Item> &&
             !std::is_invocable_v<Callable, Item, Random&>)
  NamedFunction(Callable callable)  // NOLINT(google-explicit-constructor)
      : NamedFunction("a function of the program",
                      [callable = std::move(callable)](auto&& item, Random&) -> Item {
                        return callable(std::forward<decltype(item)>(item));
                      }) {}

  /// Returns the name that error messages use.
  const std::string& name() const { return name_; }
  /// Returns the function to apply.
  const Function& function() const { return function_; }

 private:
  std::string name_;
  Function function_;
};

/// A named function of some columns of one sample. It takes the tensors in the order in which
/// DataLoader::map_columns() names the columns, and returns one tensor for each resulting column.
class SampleTransform : public NamedFunction<std::vector<at::Tensor>> {
 public:
  using NamedFunction::NamedFunction;
};

}  // namespace trireme::data
