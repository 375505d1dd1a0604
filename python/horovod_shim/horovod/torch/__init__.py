# SPDX-License-Identifier: Apache-2.0
"""Another name of trireme.horovod.torch."""
import sys

import trireme.horovod.torch
from trireme.horovod.torch import compression, elastic

for _name, _module in (("", trireme.horovod.torch), (".compression", compression), (".elastic", elastic)):
    sys.modules[__name__ + _name] = _module
