# SPDX-License-Identifier: Apache-2.0
"""`dovetail demo`."""

from dovetail.cli.demo.group import command

__all__ = ["command"]
