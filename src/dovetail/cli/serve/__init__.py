# SPDX-License-Identifier: Apache-2.0
"""`dovetail serve`."""

from dovetail.cli.serve.group import command

__all__ = ["command"]
