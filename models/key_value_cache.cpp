// SPDX-License-Identifier: Apache-2.0
#include <models/key_value_cache.h>

namespace models {

std::pair<torch::Tensor, torch::Tensor> LayerCache::append(const torch::Tensor& keys,
                                                           const torch::Tensor& values) {
  const std::int64_t added = keys.size(2);
  TORCH_CHECK(length_ + added <= capacity_, "a cache for ", capacity_, " tokens has ", length_,
              " and cannot take ", added, " more; make it larger, or clear it");
  if (length_ == 0) {  // Rows, device and dtype may be others than before.
    const auto shape = [&](const torch::Tensor& like) {
      return std::vector<std::int64_t>{like.size(0), like.size(1), capacity_, like.size(3)};
    };
    const bool fits = keys_.defined() && keys_.sizes() == shape(keys) &&
                      keys_.options().type_equal(keys.options());
    if (!fits) {
      keys_ = torch::empty(shape(keys), keys.options());
      values_ = torch::empty(shape(values), values.options());
    }
  }
  TORCH_CHECK(keys.size(0) == keys_.size(0) && keys.size(1) == keys_.size(1), "keys of ",
              keys.size(0), " rows and ", keys.size(1), " heads come to a cache of ", keys_.size(0),
              " rows and ", keys_.size(1), " heads; clear it for other rows");
  keys_.narrow(2, length_, added).copy_(keys);
  values_.narrow(2, length_, added).copy_(values);
  length_ += added;
  return {keys_.narrow(2, 0, length_), values_.narrow(2, 0, length_)};
}

torch::Tensor attend_from_last(const torch::Tensor& queries, const torch::Tensor& keys,
                               const torch::Tensor& values) {
  const std::int64_t last = queries.size(2);
  const std::int64_t tokens = keys.size(2);
  const bool is_whole = last == tokens;
  std::optional<torch::Tensor> sees;
  if (!is_whole && last > 1) {
    sees = torch::ones({last, tokens}, queries.options().dtype(torch::kBool)).tril(tokens - last);
  }
  return at::scaled_dot_product_attention(queries, keys, values, sees, /*dropout_p=*/0.0,
                                          /*is_causal=*/is_whole);
}

}  // namespace models
