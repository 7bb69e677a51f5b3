# SPDX-License-Identifier: Apache-2.0
"""A small engine that is killed at any operation."""
from kills import engines, order, test_a_kill_at  # noqa: F401
