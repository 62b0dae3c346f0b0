# SPDX-License-Identifier: Apache-2.0
"""Jobs as users submit, follow and end them: from a command and a shape to the objects of a job; and from the name of a
job to its objects, its pods, its logs and its life.

Rule: all of it needs rights in the namespace of the job alone.
"""
