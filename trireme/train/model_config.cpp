// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/model_config.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace trireme {

void describe(config::Fields& fields, LossScaleOptions& options) {
  fields.add("initial", options.initial, "the scale at the beginning").above(0);
  fields.add("growth", options.growth, "by what it grows").at_least(1);
  fields.add("growth_interval", options.growth_interval, "after so many steps without overflow")
      .at_least(1);
  fields.add("backoff", options.backoff, "by what it shrinks after an overflow")
      .above(0)
      .at_most(1);
  fields.add("minimum", options.minimum, "below which it does not go").above(0);
}

void describe(config::Fields& fields, ModelOptions& options) {
  fields.add("input_column", options.input_column, "what goes into forward; empty: the first");
  fields.add("target_column", options.target_column, "what goes into the loss; empty: the second");
  fields.add("clip_norm", options.clip_norm, "gradients are shortened to this norm").above(0);
  fields.add("autocast", options.autocast, "in what forward computes matrix products")
      .check_that(
          [](const std::optional<at::ScalarType>& type) {
            return !type || *type == at::kBFloat16 || *type == at::kHalf;
          },
          "of half precision");
  fields.add("loss_scale", options.loss_scale, "Of training in float16.");
  fields.add("deterministic", options.deterministic, "a seed that makes runs repeatable");
  fields
      .add("check_replicas", options.check_replicas,
           "compares what several ranks hold after every n-th step; 0: never")
      .at_least(0);
  fields.add("plan", options.plan, "How training is parallel.");
}

void describe(config::Fields& fields, FitOptions& options) {
  fields.add("epochs", options.epochs, "passes over the data").at_least(1);
  fields
      .add("validate_every_epochs", options.validate_every_epochs,
           "validates at the end of every n-th epoch; 0: never")
      .at_least(0);
  fields
      .add("validate_every_steps", options.validate_every_steps,
           "and after every n-th step; 0: never")
      .at_least(0);
}

namespace config {
namespace {

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 4> kTypes = {
    {{"float32", at::kFloat},
     {"float64", at::kDouble},
     {"float16", at::kHalf},
     {"bfloat16", at::kBFloat16}}};

}  // namespace

std::string Codec<at::ScalarType>::expected() {
  return "one of \"float32\", \"float64\", \"float16\", \"bfloat16\"";
}

std::optional<at::ScalarType> Codec<at::ScalarType>::parse(const Value& value) {
  const auto text = value.text();
  const auto* const found = std::ranges::find(kTypes, text.value_or(""),
                                              &std::pair<std::string_view, at::ScalarType>::first);
  return found == kTypes.end() ? std::nullopt : std::optional(found->second);
}

Value Codec<at::ScalarType>::write(at::ScalarType type) {
  const auto* const found =
      std::ranges::find(kTypes, type, &std::pair<std::string_view, at::ScalarType>::second);
  return {.data = std::string(found == kTypes.end() ? c10::toString(type) : found->first)};
}

}  // namespace config
}  // namespace trireme
