# SPDX-License-Identifier: Apache-2.0
"""`dovetail top`."""

from dovetail.cli.top.top import command

__all__ = ["command"]
