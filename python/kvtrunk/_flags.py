# SPDX-License-Identifier: Apache-2.0
"""engine/_flags.py under the name that it had, for programs outside this package that change it."""
import sys

from .engine import _flags

sys.modules[__name__] = _flags
