# SPDX-License-Identifier: Apache-2.0
"""Dovetail, a GPU scheduler for Kubernetes. docs/architecture.md names the rooms and the arrows between them."""

from dovetail.__native__ import install, runs

__version__ = "0.1.0"
__runs__ = runs

install()
