# SPDX-License-Identifier: Apache-2.0
"""A model of the kubelet: its answer to a pod, by its Topology Manager and the managers that give hints to it."""
