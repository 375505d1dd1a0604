// SPDX-License-Identifier: Apache-2.0
// Carrier of the precompiled torch/torch.h; see Torch.cmake.
