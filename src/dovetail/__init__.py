# SPDX-License-Identifier: Apache-2.0
"""Dovetail, a GPU scheduler for Kubernetes. docs/architecture.md names the rooms and the arrows between them."""

from dovetail import __native__

__version__ = "0.1.0"
__runs__ = __native__.install()
"""Whether the native kernel runs, and if not, why, in words."""
