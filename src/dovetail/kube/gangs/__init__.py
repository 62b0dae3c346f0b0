# SPDX-License-Identifier: Apache-2.0
"""Gangs: what pods, PodGroups and the objects that own pods declare of them."""
