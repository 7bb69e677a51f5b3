# SPDX-License-Identifier: Apache-2.0
"""Engines start on a pool that is full of what others cached."""
from starting import full, test_starting_an_engine_changes_no_cached_page  # noqa: F401
