# SPDX-License-Identifier: Apache-2.0
"""Dovetail, a GPU scheduler for Kubernetes. docs/architecture.md names the rooms and the arrows between them."""

from dovetail import __native__

__version__ = "0.1.0"
__runs__ = __native__.install()
"""Which native parts run, and if not all, why, in words."""
