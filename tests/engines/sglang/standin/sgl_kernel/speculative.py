# SPDX-License-Identifier: Apache-2.0
"""Names of sgl_kernel.speculative: see the package."""
from sgl_kernel.drafts import reconstruct_indices_from_tree_mask  # noqa: F401
