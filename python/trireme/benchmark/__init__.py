# SPDX-License-Identifier: Apache-2.0
"""Runs a script of torch.distributed with and without `import trireme.torch`: python -m trireme.benchmark --help."""
