// SPDX-License-Identifier: Apache-2.0
// Carries precompiled.h; see Torch.cmake.
