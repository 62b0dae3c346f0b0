# SPDX-License-Identifier: Apache-2.0
"""From Kubernetes objects to the events and records of the core."""
