# SPDX-License-Identifier: Apache-2.0
"""Web pages over the views that commands print. Read-only: no page writes to a cluster, but for `actions`, on option.

- `sources`: what answers questions: the running scheduler, or `copied_cluster`, our own copy of the cluster.
- `pages`: what each page shows, as values (`page_types`) made of those answers; `gpu_cells`: the GPUs of a node.
- `past_sources`: what answers about the past: the collector, or a history that is read here, in `past_process`;
  `past_pages`, `past_page_types`: the pages of it.
- `board`: the pages that somebody has open, each asked for once per change and shared by all; `streams`: how a viewer
  hears of changes. `sheets`: a page as JSON and as CSV.
- `recorded_day`: a recorded day, its film (`grid_film`), and what its time bar shows (`day_line`); `day_pages`: the
  pages at a time of it; `replay_app`, `replay_types`: its routes.
- `actions`: what viewers have done, as themselves (`viewers`): after a dry run (`confirmations`), with a record
  (`action_records`); `action_types`, `action_routes`.
- `predictions`: what viewers ask about a change. `access`: what a request may see and ask. `app`: the routes, over
  Starlette; `responses`: how they answer; `assets`: the files of the pages.
"""
