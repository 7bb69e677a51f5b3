# SPDX-License-Identifier: Apache-2.0
"""Names of sgl_kernel.mamba: see the package."""
from sgl_kernel import __getattr__  # noqa: F401
