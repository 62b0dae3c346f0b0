# SPDX-License-Identifier: Apache-2.0
"""A recorded day in a real Chromium: the time bar by keyboard, mouse and link, and the pages at its times."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.async_api import Browser, Route, expect

from dovetail.core import events as ev
from tests.core.gang_oracle import gpu_node, gpu_pod
from tests.dashboard.test_pages_in_chromium import HOSTILE, Seen, seen, url_of
from tests.dashboard.test_pages_in_chromium import browser as browser
from tests.dashboard.test_recorded_day import MINUTE_MS, START_MS
from tests.dashboard.test_recorded_day import recorded as recorded
from tests.dashboard.test_replay_app import replayed
from tests.recording.histories import Recorded

pytestmark = [pytest.mark.chromium, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


async def at_end(shown: Seen) -> None:
    await shown.page.get_by_role("slider").focus()
    await shown.page.keyboard.press("End")


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
async def test_every_time_can_be_reached_and_shown(browser: Browser, recorded: Path, width: int, scheme: str) -> None:
    shown = await seen(browser, width, scheme)
    page = shown.page
    async with replayed(recorded) as (client, _):
        await shown.open(url_of(client))
        slider, facts = page.get_by_role("slider"), page.locator(".day-facts")
        await expect(facts).to_have_text("8 of 8 GPUs in use, 0 free")
        await expect(page.locator(".day-lines")).to_have_attribute(
            "aria-label", re.compile("up to 8 of 8 GPUs in use.*2 events")
        )
        await page.get_by_role("button", name="Next event").click()
        await expect(slider).to_have_attribute("aria-valuetext", re.compile("1m after the start"))
        await expect(page.locator(".day-event")).to_contain_text("evict")
        await expect(page).to_have_url(re.compile("at=2027-01-15T08%3A01%3A00.000Z"))
        await expect(page.locator(".cards")).to_contain_text("GPUs")
        await shown.check()
        await at_end(shown)
        await expect(facts).to_have_text(re.compile("of 4 GPUs in use"))
        await page.get_by_role("group", name="GPUs of the nodes").focus()
        await page.keyboard.press("ArrowDown")
        await expect(page.locator(".film-node")).to_contain_text("a: ")
        await page.keyboard.press(",")
        await page.keyboard.press(",")
        await expect(slider).to_have_attribute("aria-valuetext", re.compile("1m after the start"))
        await page.get_by_role("link", name="Queue", exact=True).click()
        await expect(page.locator("tbody")).to_contain_text("ns/own")
        await shown.check()
        await page.get_by_role("link", name="ns/own").click()
        await expect(page.locator("h1")).to_have_text("ns/own")
        await expect(page).to_have_url(re.compile("at=2027-01-15T08%3A01%3A00.000Z"))
    await page.close()


async def test_a_link_leads_to_its_time_and_the_table_has_it(browser: Browser, recorded: Path) -> None:
    shown = await seen(browser)
    page = shown.page
    async with replayed(recorded) as (client, _):
        await shown.open(f"{url_of(client)}?view=table&at=2027-01-15T08:10:00Z")
        await expect(page.locator("tbody tr")).to_have_count(1)
        await page.get_by_role("slider").focus()
        await page.keyboard.press("Home")
        await expect(page.locator("tbody tr")).to_have_count(2)
        await shown.open(f"{url_of(client)}queue?at=2027-01-15T08:03:00Z")
        await expect(page.locator("tbody")).to_contain_text("ns/own")
        await shown.open(f"{url_of(client)}queue?at=nonsense")
        await expect(page.locator(".empty")).to_contain_text("No job waits.")
        await expect(page.locator(".day .old")).to_contain_text("“nonsense”, which is no time")
        await shown.open(f"{url_of(client)}?at=2031-01-01T00:00:00Z")
        await expect(page.locator(".day .old")).to_have_text(
            "The link asks for 2031-01-01 00:00:00 UTC, which the recording does not have: its end is shown."
        )
        await page.get_by_role("slider").focus()
        await page.keyboard.press("Home")
        await expect(page.locator(".day .old")).to_have_count(0)
        await shown.open(f"{url_of(client)}node/a?at=2027-01-15T08:00:00Z")
        await expect(page.locator("tbody")).to_contain_text("ns/first-")
        await shown.check()
    await page.close()


async def test_it_plays_to_its_end_and_the_bar_can_be_drawn(browser: Browser, recorded: Path) -> None:
    shown = await seen(browser)
    page = shown.page
    async with replayed(recorded) as (client, _):
        await shown.open(url_of(client))
        await page.get_by_label("Speed").select_option("3600")
        await page.get_by_role("button", name="Play").click()
        await expect(page.get_by_role("slider")).to_have_attribute("aria-valuetext", re.compile("10m after the start"))
        await expect(page.get_by_role("button", name="Play")).to_be_visible()
        box = await page.get_by_role("slider").bounding_box()
        assert box is not None
        await page.mouse.move(box["x"] + box["width"] - 10, box["y"] + box["height"] / 2)
        await page.mouse.down()
        await page.mouse.move(box["x"] + 20, box["y"] + box["height"] / 2, steps=8)
        await page.mouse.up()
        await expect(page.locator(".day-facts")).to_have_text("8 of 8 GPUs in use, 0 free")
        assert shown.errors == []
    await page.close()


async def test_the_keys_of_all_pages_work_on_the_bar_too(browser: Browser, recorded: Path) -> None:
    shown = await seen(browser)
    async with replayed(recorded) as (client, _):
        await shown.open(url_of(client))
        slider = shown.page.get_by_role("slider")
        await at_end(shown)
        await shown.page.keyboard.press(",")
        await expect(slider).to_have_attribute("aria-valuetext", re.compile("1m after the start"))
        await shown.page.keyboard.press(".")
        await expect(slider).to_have_attribute("aria-valuetext", re.compile("10m after the start"))
    await shown.page.close()


async def test_a_link_to_a_time_that_is_not_read_yet_waits_for_it(browser: Browser, recorded: Path) -> None:
    shown, read = await seen(browser), False
    page = shown.page

    async def part(route: Route) -> None:
        reply = await route.fetch()
        rest = {} if read else {"whole": False, "readPermille": 500, "endMs": START_MS + 2 * MINUTE_MS}
        await route.fulfill(response=reply, json=await reply.json() | rest)

    await page.route("**/api/replay.json", part)
    async with replayed(recorded) as (client, _):
        await page.goto(f"{url_of(client)}queue?at=2027-01-15T08:03:00Z")
        await expect(page.locator(".old")).to_contain_text("50%. It is shown up to 2027-01-15 08:02:00 UTC")
        await expect(page.locator(".old")).to_contain_text("The time of the link is not read yet")
        await expect(page.locator("tbody")).to_have_count(0)
        read = True
        await expect(page.get_by_role("slider")).to_have_attribute("aria-valuetext", re.compile("3m after the start"))
        await expect(page.locator("tbody")).to_contain_text("ns/own")
        assert shown.errors == []
    await page.close()


async def test_a_day_that_is_cut_off_has_where_it_ends(browser: Browser, recorded: Path) -> None:
    file = recorded / "000001.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    shown = await seen(browser)
    async with replayed(recorded) as (client, _):
        await shown.open(url_of(client))
        await expect(shown.page.locator(".old")).to_contain_text(
            re.compile("Shown up to 2027-01-15 08:04:00 UTC, and not further: .*in the middle of a line")
        )
        await at_end(shown)
        await expect(shown.page.get_by_role("slider")).to_have_attribute("aria-valuetext", re.compile("4m after"))
        await shown.check()
    await shown.page.close()


async def test_no_name_of_a_recording_is_markup(browser: Browser, tmp_path: Path) -> None:
    made = Recorded(tmp_path / "r")
    node = gpu_node(f"n{HOSTILE}", 4, rack=HOSTILE)
    pod = replace(gpu_pod("p", 2), name=HOSTILE)
    made.step(
        [ev.NodeChanged(node), ev.PodChanged(pod), ev.PodChanged(replace(gpu_pod("q", 8), name=f"w{HOSTILE}"))],
        START_MS,
    )
    made.step([ev.NodeRemoved(node.name)], START_MS + MINUTE_MS)
    made.close()
    shown = await seen(browser)
    await shown.page.add_init_script("window.hacked = () => { window.wasHacked = true; }")
    async with replayed(tmp_path / "r") as (client, _):
        for path in ("", "?view=table", "queue", "jobs"):
            await shown.open(f"{url_of(client)}{path}")
            await expect(shown.page.locator(".day-facts")).to_contain_text("of 4 GPUs")
            await shown.check()
        await at_end(shown)
        await expect(shown.page.locator(".day-event")).to_contain_text("<img src=x")
        assert await shown.page.evaluate("window.wasHacked") is None
        assert await shown.page.locator("main img, main script").count() == 0
    await shown.page.close()
