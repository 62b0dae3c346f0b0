# SPDX-License-Identifier: Apache-2.0
"""The process that answers for the running scheduler: the aggregated API views.dovetail.dev.

- `server`: TLS, authentication, limits of a request; `paths`: the questions, from the paths of requests.
- `following`: the copy of the scheduler's state, kept by its calls of the core, and the objects that it has reported.
- `generation`: a process forked from the copy, which answers for the state at that moment; `generations`: when they
  are made, and which one answers.
- `answers`: the views of one state, by resource; `redaction`: what an asker may see of them.
- `whatifs`: what a change would do, each by a process of its own; `priority`: how all of them yield to the scheduler.
- `certificate`: the serving certificate. `options`: what the scheduler passes to this process.
"""
