# SPDX-License-Identifier: Apache-2.0
"""Dovetail, a GPU scheduler for Kubernetes. docs/architecture.md names the rooms and the arrows between them."""

__version__ = "0.1.0"
