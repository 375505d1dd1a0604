# SPDX-License-Identifier: Apache-2.0
"""What the process imports from which ranks are forked; ranks.py names this module. Optimizers and DDP need torch._dynamo.

The garbage collector neither runs during the imports nor visits in any rank what they made.
"""
import gc

gc.disable()
import torch  # noqa: E402, F401
import torch._dynamo  # noqa: E402, F401
import torch.distributed  # noqa: E402, F401

gc.freeze()
gc.enable()
