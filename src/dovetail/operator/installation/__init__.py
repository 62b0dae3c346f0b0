# SPDX-License-Identifier: Apache-2.0
"""What `dovetail install` and `dovetail uninstall` do: the definitions, the operator and its GPUStack are applied or
removed. All else is the operator's."""
