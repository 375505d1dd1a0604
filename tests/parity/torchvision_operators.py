# SPDX-License-Identifier: Apache-2.0
"""Lets torchvision be imported beside another build of torch, by this script or by transformers: import this before them.

torchvision registers shape functions for two operators of its extension module, which fits one build of torch only and stays unloaded.
"""
import torch

library = torch.library.Library("torchvision", "DEF")
for operator in ("nms", "qnms"):
    library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
