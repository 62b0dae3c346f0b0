# SPDX-License-Identifier: Apache-2.0
"""`dovetail simulate`."""

from dovetail.cli.simulate.simulate import command

__all__ = ["command"]
