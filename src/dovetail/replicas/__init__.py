# SPDX-License-Identifier: Apache-2.0
"""How many replicas a serving workload needs and could have now, for an autoscaler."""
