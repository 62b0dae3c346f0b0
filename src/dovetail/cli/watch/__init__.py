# SPDX-License-Identifier: Apache-2.0
"""`dovetail watch`."""

from dovetail.cli.watch.watch import command

__all__ = ["command"]
