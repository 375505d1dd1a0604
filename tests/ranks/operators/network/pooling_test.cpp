// SPDX-License-Identifier: Apache-2.0
// Pooling, resizing, padding and sampling with every placement.
#include <tests/ranks/operators/operator_checks.h>

namespace trireme {
namespace {

namespace functional = torch::nn::functional;
using test::check_operators;
using test::one;
using test::sample;
using test::Tensors;

TEST(PoolingRules, TakeTheLargest) {
  check_operators({
      one("max_pool1d", [](const Tensors& in) { return torch::max_pool1d(in[0], 2); },
          {sample({2, 3, 6})}),
      {.name = "max_pool1d without gradient",
       .function = [](const Tensors& in) { return Tensors{torch::max_pool1d(in[0], 2)}; },
       .inputs = {sample({2, 3, 6})},
       .has_gradient = false},
      {.name = "max_pool2d with indices",
       .function =
           [](const Tensors& in) {
             const auto [values, indices] = torch::max_pool2d_with_indices(in[0], 2, 1, 1);
             return Tensors{values, indices};
           },
       .inputs = {sample({2, 3, 4, 4})}},
      one("max_pool2d of one image", [](const Tensors& in) { return torch::max_pool2d(in[0], 2); },
          {sample({3, 4, 4})}),
      one("max_pool3d",
          [](const Tensors& in) {
            return torch::max_pool3d(in[0], 2, 2, 0, 1, /*ceil_mode=*/true);
          },
          {sample({2, 2, 3, 4, 3})}),
      one("adaptive_max_pool2d",
          [](const Tensors& in) { return std::get<0>(torch::adaptive_max_pool2d(in[0], {2, 3})); },
          {sample({3, 2, 4, 5})}),
      one("adaptive_max_pool1d",
          [](const Tensors& in) { return std::get<0>(torch::adaptive_max_pool1d(in[0], 2)); },
          {sample({3, 2, 5})}),
      one("adaptive_max_pool3d",
          [](const Tensors& in) {
            return std::get<0>(torch::adaptive_max_pool3d(in[0], {2, 1, 2}));
          },
          {sample({2, 2, 3, 2, 4})}),
      one("max_unpool2d",
          [](const Tensors& in) {
            const auto [values, indices] = torch::max_pool2d_with_indices(in[0], 2);
            return torch::max_unpool2d(values, indices, {4, 4});
          },
          {sample({2, 3, 4, 4})}),
  });
}

TEST(PoolingRules, TakeMeans) {
  check_operators({
      one("avg_pool1d", [](const Tensors& in) { return torch::avg_pool1d(in[0], 2); },
          {sample({2, 3, 6})}),
      one("avg_pool2d", [](const Tensors& in) { return torch::avg_pool2d(in[0], 3, 2, 1); },
          {sample({3, 2, 5, 5})}),
      one("avg_pool3d", [](const Tensors& in) { return torch::avg_pool3d(in[0], 2); },
          {sample({2, 1, 2, 4, 2})}),
      one("adaptive_avg_pool2d",
          [](const Tensors& in) { return torch::adaptive_avg_pool2d(in[0], {2, 3}); },
          {sample({2, 5, 4, 5})}),
      one("adaptive_avg_pool2d to one",
          [](const Tensors& in) { return torch::adaptive_avg_pool2d(in[0], {1, 1}); },
          {sample({2, 3, 4, 4})}),
      one("adaptive_avg_pool3d",
          [](const Tensors& in) { return torch::adaptive_avg_pool3d(in[0], {2, 1, 2}); },
          {sample({2, 2, 3, 2, 4})}),
  });
}

TEST(PoolingRules, Resize) {
  check_operators({
      one("nearest", [](const Tensors& in) { return torch::upsample_nearest2d(in[0], {6, 4}); },
          {sample({2, 3, 3, 2})}),
      one("nearest of a line",
          [](const Tensors& in) { return torch::upsample_nearest1d(in[0], 7); },
          {sample({3, 2, 3})}),
      one("nearest of a volume",
          [](const Tensors& in) { return torch::upsample_nearest3d(in[0], {2, 4, 2}); },
          {sample({2, 2, 1, 2, 2})}),
      one("nearest exact",
          [](const Tensors& in) { return torch::_upsample_nearest_exact2d(in[0], {5, 4}); },
          {sample({2, 3, 3, 2})}),
      one("linear", [](const Tensors& in) { return torch::upsample_linear1d(in[0], 5, false); },
          {sample({3, 2, 3})}),
      one("bilinear",
          [](const Tensors& in) { return torch::upsample_bilinear2d(in[0], {5, 5}, true); },
          {sample({3, 2, 3, 3})}),
      one("bicubic",
          [](const Tensors& in) { return torch::upsample_bicubic2d(in[0], {5, 5}, false); },
          {sample({3, 2, 3, 3})}),
      one("antialiased",
          [](const Tensors& in) { return torch::_upsample_bilinear2d_aa(in[0], {2, 2}, false); },
          {sample({3, 2, 4, 4})}),
      one("trilinear",
          [](const Tensors& in) { return torch::upsample_trilinear3d(in[0], {2, 3, 4}, false); },
          {sample({2, 1, 2, 2, 2})}),
  });
}

TEST(PoolingRules, Pad) {
  check_operators({
      one("constants", [](const Tensors& in) { return torch::constant_pad_nd(in[0], {1, 2}, 3.0); },
          {sample({3, 4})}),
      one("constants on two sides",
          [](const Tensors& in) { return torch::constant_pad_nd(in[0], {1, 1, 0, 0, 0, 2}, 0); },
          {sample({2, 3, 2})}),
      one("reflected line",
          [](const Tensors& in) { return torch::reflection_pad1d(in[0], {1, 2}); },
          {sample({2, 3, 4})}),
      one("reflected image",
          [](const Tensors& in) { return torch::reflection_pad2d(in[0], {1, 0, 2, 1}); },
          {sample({2, 3, 4, 3})}),
      one("reflected volume",
          [](const Tensors& in) { return torch::reflection_pad3d(in[0], {1, 0, 1, 1, 0, 1}); },
          {sample({2, 2, 2, 3, 2})}),
      one("replicated line",
          [](const Tensors& in) { return torch::replication_pad1d(in[0], {1, 2}); },
          {sample({2, 3, 4})}),
      one("replicated image",
          [](const Tensors& in) { return torch::replication_pad2d(in[0], {1, 0, 2, 1}); },
          {sample({3, 4, 3})}),
      one("replicated volume",
          [](const Tensors& in) { return torch::replication_pad3d(in[0], {1, 0, 1, 1, 0, 1}); },
          {sample({2, 2, 2, 3, 2})}),
      one("circular",
          [](const Tensors& in) {
            return functional::pad(in[0],
                                   functional::PadFuncOptions({1, 1, 1, 0}).mode(torch::kCircular));
          },
          {sample({2, 3, 4, 3})}),
  });
}

TEST(PoolingRules, MoveBetweenChannelsAndSpace) {
  check_operators({
      one("pixel_shuffle", [](const Tensors& in) { return torch::pixel_shuffle(in[0], 2); },
          {sample({3, 16, 2, 4})}),
      one("pixel_unshuffle", [](const Tensors& in) { return torch::pixel_unshuffle(in[0], 2); },
          {sample({2, 4, 4, 8})}),
      one("channel_shuffle", [](const Tensors& in) { return torch::channel_shuffle(in[0], 2); },
          {sample({3, 4, 2, 2})}),
      one("unfold windows",
          [](const Tensors& in) { return torch::im2col(in[0], {2, 2}, {1, 1}, {0, 0}, {1, 1}); },
          {sample({3, 4, 3, 3})}),
      one("fold windows",
          [](const Tensors& in) {
            return torch::col2im(in[0], {3, 3}, {2, 2}, {1, 1}, {0, 0}, {1, 1});
          },
          {sample({3, 16, 4})}),
      one("fold windows of one image",
          [](const Tensors& in) {
            return torch::col2im(in[0], {3, 3}, {2, 2}, {1, 1}, {0, 0}, {1, 1});
          },
          {sample({8, 4})}),
  });
}

TEST(PoolingRules, SampleGrids) {
  const auto grid = sample({3, 2, 3, 2}) / 2;
  check_operators({
      one("grid_sampler_2d",
          [](const Tensors& in) { return torch::grid_sampler_2d(in[0], in[1], 0, 0, false); },
          {sample({3, 2, 4, 4}), grid}),
      one("grid_sampler_3d",
          [](const Tensors& in) { return torch::grid_sampler_3d(in[0], in[1], 0, 1, true); },
          {sample({2, 2, 2, 2, 2}), sample({2, 1, 2, 2, 3}) / 2}),
      one("affine_grid_generator",
          [](const Tensors& in) {
            return torch::affine_grid_generator(in[0], {3, 1, 2, 2}, false);
          },
          {sample({3, 2, 3})}),
  });
}

}  // namespace
}  // namespace trireme
