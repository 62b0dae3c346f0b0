# SPDX-License-Identifier: Apache-2.0
"""The verbs of `dovetail queue`: each in a module of its own."""
