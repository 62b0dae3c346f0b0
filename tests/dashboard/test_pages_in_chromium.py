# SPDX-License-Identifier: Apache-2.0
"""The pages in a real Chromium: every one of them, with hostile names, by keyboard, narrow and dark; the stream cut and
resumed; links, back and forward; users with different rights."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from msgspec.structs import replace
from playwright.async_api import Browser, Page, async_playwright, expect

from dovetail.cli.demo.past import write_past
from dovetail.core.json_text import decode_json
from dovetail.dashboard.access import OwnAccess
from dovetail.dashboard.app import SchedulerSources
from dovetail.dashboard.board import PageBoard
from dovetail.dashboard.recorded_decisions import RecordedDecisions
from dovetail.dashboard.scheduler_metrics import SchedulerMetrics
from dovetail.dashboard.serve import bound, serving
from dovetail.dashboard.share_samples import ShareSamples
from dovetail.kube.objects.history import QUESTION
from dovetail.kube.objects.views import ViewDocument
from dovetail.kube.reading.views import ViewRequest
from tests.dashboard import test_actions as acting
from tests.dashboard.test_app import OnlyTeamA
from tests.dashboard.test_recorded_decisions import recording as recording
from tests.dashboard.test_scheduler_metrics import Replica
from tests.dashboard.worlds import NOW_MS, FakePast, FakeSource, node, pod, served, wiring
from tests.patience import PATIENCE_S
from tools import chromium

expect.set_options(timeout=1000 * PATIENCE_S)
pytestmark = [pytest.mark.chromium, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-software-rasterizer"]
"""Nothing here needs a GPU: without its imitation in software a page takes a fifth less time."""
AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text()
HOSTILE = "<img src=x onerror=hacked()><script>hacked()</script>&amp; \u202eتسر\u2066 🦊 ${hacked()} =1+1 " + "x" * 300
"""What a tenant might write."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT")
KEPT = frozenset({
    "state", "when", "sure", "kind", "at", "cause", "pcie", "levels", "isolation", "gpus", "labels", "by", "idle",
    "verdict", "workload", "outcome", "holder",
})  # fmt: skip
"""Fields that are words of the scheduler, not of users, and those that pages of several answers are put together by."""
WORLD = (
    node("a", rack="r1", block="b1"), node("b", rack="r2", block="b1"), wiring("a"), wiring("b", switched=False),
    pod("runs", 2, on="a"), pod("waits", 9), pod("small", 1), pod("secret-name", 4, namespace="team-b", on="b"),
)  # fmt: skip
PATHS = (
    "", "?view=table", "queue", "jobs", "teams", "leases", "job/team-a/runs", "job/team-a/waits", "node/a", "waste",
    "whatif", "cost", "node/b", "whatif?kind=quota", "cost?by=node&period=7d",
)  # fmt: skip


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("past") / "history.db"
    write_past(path, NOW_MS)
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    program = chromium.build(print)
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=str(program), args=FLAGS)
        yield opened
        await opened.close()


class Seen:
    """A page of the browser, and what it complained of."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda one: self.errors.append(one.text) if one.type == "error" else None)

    async def open(self, url: str) -> None:
        await self.page.goto(url)
        await self.settled()

    async def settled(self) -> None:
        await self.page.wait_for_selector("main h1")
        await self.page.wait_for_selector(".loading", state="detached")

    async def check(self) -> None:
        """Nothing is wrong for those that use a keyboard or a screen reader, nor with the width."""
        if not await self.page.evaluate("'axe' in window"):  # A page that was loaded anew has lost it.
            await self.page.evaluate(AXE)
        # Of what is in order it names one place each, which takes a third less time.
        found = await self.page.evaluate("axe.run({resultTypes: ['violations']})")
        assert len(found["passes"]) > 10
        assert [(one["id"], [at["html"] for at in one["nodes"]]) for one in found["violations"]] == []
        assert await self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert self.errors == []


async def seen(browser: Browser, width: int = 1400, scheme: Any = "light") -> Seen:
    page = await browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(1000 * PATIENCE_S)
    return Seen(page)


class HostileSource(FakeSource):
    """Every text of an answer that a user might have written has HOSTILE in it."""

    async def ask(self, request: ViewRequest) -> ViewDocument:
        found = await super().ask(request)
        answer = _hostile(decode_json(found.answer, dict[str, Any] | list[Any]), "")
        return replace(found, answer=msgspec.Raw(msgspec.json.encode(answer)))


class HostilePast(FakePast):
    """The same of the past, but for the names of days."""

    async def ask(self, request: ViewRequest) -> ViewDocument:
        found = await super().ask(request)
        if '"by":"day"' in request.query.get(QUESTION, ""):
            return found
        answer = _hostile(decode_json(found.answer, dict[str, Any]), "")
        return replace(found, answer=msgspec.Raw(msgspec.json.encode(answer)))


def _hostile(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return {name: one if name in KEPT else _hostile(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_hostile(one, key) for one in value]
    return f"{value} {HOSTILE}" if isinstance(value, str) and not _TIME.match(value) else value


def url_of(client: Any) -> str:
    return str(client._base_url)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(browser: Browser, past: Path) -> AsyncIterator[tuple[Seen, str]]:
    """A page of the browser, and where the dashboard of WORLD is."""
    shown = await seen(browser)
    async with served(FakeSource(*WORLD), past=FakePast(past)) as (client, _):
        yield shown, url_of(client)
    await shown.page.close()


@pytest.mark.parametrize("path", PATHS)
async def test_every_page_can_be_used_by_all_and_is_whole_on_paper(world: tuple[Seen, str], path: str) -> None:
    shown, url = world
    page = shown.page
    await shown.open(f"{url}{path}")
    await shown.check()
    await page.emulate_media(media="print", color_scheme="dark")
    await expect(page.locator("header")).to_be_hidden()
    assert await page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    assert (await page.pdf(format="A4")).startswith(b"%PDF")
    await page.set_viewport_size({"width": 390, "height": 900})
    await page.emulate_media(media="screen", color_scheme="dark")
    await expect(page.locator("header")).to_be_visible()
    await shown.check()
    await page.set_viewport_size({"width": 1400, "height": 900})
    await page.emulate_media(media="screen", color_scheme="light")


async def test_no_text_of_a_cluster_is_markup(browser: Browser, past: Path) -> None:
    shown = await seen(browser)
    await shown.page.add_init_script("window.hacked = () => { window.wasHacked = true; }")
    async with served(HostileSource(*WORLD), past=HostilePast(past)) as (client, _):
        for path in ("", "?view=table", "queue", "jobs", "teams", "leases", "waste", "cost?by=job"):
            await shown.open(f"{url_of(client)}{path}")
            if path not in ("teams", "leases"):
                await expect(shown.page.locator("main")).to_contain_text("<img src=x onerror=hacked()>")
            await shown.check()
        await shown.open(f"{url_of(client)}job/team-a/%3Cimg%20src=x%20onerror=hacked()%3E")
        await expect(shown.page.locator("h1")).to_have_text("team-a/<img src=x onerror=hacked()>")
        await expect(shown.page.locator("main")).to_contain_text("It is not there.")
        assert await shown.page.evaluate("window.wasHacked") is None
        assert await shown.page.locator("main img, main script").count() == 0
    await shown.page.close()


async def test_without_anything_a_page_shows_what_to_do(browser: Browser) -> None:
    shown = await seen(browser)
    async with served(FakeSource()) as (client, _):
        for path in ("", "queue", "jobs", "leases"):
            await shown.open(f"{url_of(client)}{path}")
            await expect(shown.page.locator(".empty code").first).to_contain_text("dovetail")
        for path in ("waste", "cost"):
            await shown.open(f"{url_of(client)}{path}")
            await expect(shown.page.locator(".empty")).to_contain_text("--store FILE")
        await shown.open(f"{url_of(client)}job/team-a/gone")
        await expect(shown.page.locator("main")).to_contain_text("It is not there.")
        await shown.page.goto(f"{url_of(client)}no/such/page")
        await expect(shown.page.locator("main")).to_contain_text("There is no page at this address.")
    await shown.page.close()


async def test_a_thousand_nodes_by_keyboard_with_links_that_lead_back(browser: Browser) -> None:
    shown = await seen(browser)
    page = shown.page
    nodes = [node(f"node-{number:04}", rack=f"r{number // 16:03}") for number in range(1000)]
    async with served(FakeSource(*nodes, pod("runs", 2, on="node-0007"))) as (client, _):
        await shown.open(url_of(client))
        await expect(page.locator("a.node")).to_have_count(1000)
        await page.keyboard.press("/")
        await page.keyboard.type("r004")
        await expect(page.locator("a.node")).to_have_count(16)
        filtered = page.url
        assert filtered.endswith("?q=r004")
        await page.locator("a.node").first.focus()
        await page.keyboard.press("ArrowRight")
        await page.keyboard.press("Enter")
        await expect(page.locator("h1")).to_have_text("node-0065")
        await page.keyboard.press("Control+k")
        await expect(page.get_by_role("combobox")).to_be_focused()
        await page.keyboard.type("0007")
        await expect(page.locator("[role=option]")).to_have_count(1)
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(re.compile("/node/node-0007$"))
        await expect(page.locator("tbody")).to_contain_text("team-a/runs")
        await page.go_back()
        await page.go_back()
        await expect(page).to_have_url(filtered)
        await expect(page.locator("a.node")).to_have_count(16)
        await page.go_forward()
        await expect(page.locator("h1")).to_have_text("node-0065")
        await shown.open(f"{url_of(client)}?view=table&sort=-used&q=node")
        await expect(page.locator("tbody tr").first).to_contain_text("node-0007")
        await expect(page.locator("th[aria-sort=descending]")).to_have_text(re.compile("In use"))
        await expect(page.locator("tbody tr")).to_have_count(200)
        await page.get_by_role("button", name="Show all 1000 nodes").click()
        await expect(page.locator("tbody tr")).to_have_count(1000)
    await page.close()


async def test_of_very_many_jobs_the_window_is_asked_for_and_follows_the_cluster(browser: Browser) -> None:
    shown = await seen(browser)
    page, asked = shown.page, list[str]()
    page.on("request", lambda one: asked.append(one.url) if "/api/jobs" in one.url else None)
    world = [node(f"n{at}") for at in range(150)]
    world += [pod(f"run-{number}", 1, on=f"n{number // 8}") for number in range(1100)]
    source = FakeSource(*world, pod("waits", 9, namespace="team-b"))
    async with served(source) as (client, _):
        await shown.open(f"{url_of(client)}jobs?sort=-job")
        rows, status = page.locator("tbody tr"), page.locator(".count")
        await expect(rows).to_have_count(200)
        await expect(status).to_have_text("1101 jobs")
        await expect(rows.first).to_contain_text("team-b/waits")
        await expect(rows.nth(1)).to_contain_text("team-a/run-1099")
        await page.get_by_role("button", name="Job", exact=True).click()
        await page.get_by_role("button", name="Job", exact=True).click()
        await expect(rows.nth(2)).to_contain_text("team-a/run-2")
        await page.get_by_role("button", name="Show 1000 of 1101 jobs").click()
        await expect(rows).to_have_count(1000)
        await expect(page.locator("main")).to_contain_text("The first 1000 of 1101 jobs.")
        await page.keyboard.press("/")
        await page.keyboard.type("TEAM-B/wa")
        await expect(rows).to_have_count(1)
        await expect(status).to_have_text("1 of 1101 jobs")
        await expect(page.get_by_role("searchbox")).to_be_focused()
        # What is shown is part of the address, and follows the cluster.
        await shown.open(page.url)
        await expect(rows).to_have_count(1)
        source.put(*world, pod("waits", 9, namespace="team-b"), pod("waits-too", 9, namespace="team-b"))
        await expect(status).to_have_text("2 of 1102 jobs")
        await page.get_by_role("searchbox").fill("nothing")
        await expect(page.locator("p.none")).to_contain_text("No job has “nothing”")
        await page.get_by_role("button", name="Show all").click()
        await expect(rows).to_have_count(1000)
        await page.keyboard.press("Control+k")
        await expect(page.get_by_role("combobox")).to_be_focused()
        await page.keyboard.type("job waits-t")
        await expect(page.locator("[role=option]")).to_have_text(re.compile("team-b/waits-too"))
        await page.keyboard.press("Escape")
        # A file has all rows.
        async with page.expect_download() as downloading:
            await page.get_by_role("link", name="CSV").click()
        file = await (await downloading.value).path()
        assert len(await asyncio.to_thread(file.read_bytes)) > 1102 * len("team-a/run-1,")
    assert all("/api/jobs/first%3D" in one for one in asked if not one.endswith("/api/jobs.csv"))
    assert shown.errors == []
    await page.close()


async def test_of_very_many_nodes_those_near_the_view_are_drawn(browser: Browser) -> None:
    shown = await seen(browser)
    page = shown.page
    nodes = [node(f"node-{number:04}", **({"rack": "r0"} if number < 32 else {})) for number in range(2400)]
    async with served(FakeSource(*nodes)) as (client, _):
        await shown.open(url_of(client))
        await expect(page.locator("h3")).to_have_text([re.compile("^no place"), re.compile("^r0")])
        await expect(page.locator("a.node").first).to_contain_text("node-0032")
        high = await page.evaluate("document.body.scrollHeight")
        assert 0 < await page.locator("a.node").count() < 1600
        await page.locator("a.node").first.focus()
        for _ in range(60):
            await page.keyboard.press("ArrowDown")
        focused = await page.evaluate("document.activeElement.innerText")
        assert int(focused[5:9]) > 300
        await page.evaluate("scrollTo(0, document.body.scrollHeight)")
        await expect(page.locator("a.node", has_text="node-0031")).to_be_visible()
        # The room of what is not drawn is about what it takes.
        assert abs(await page.evaluate("document.body.scrollHeight") - high) < high / 4
        # All are on paper, and not on the page afterwards.
        assert len({*re.findall(rb"/node/node-(\d{4})", await page.pdf())}) == len(nodes)
        await page.wait_for_function("document.querySelectorAll('a.node').length < 1600")
        await page.keyboard.press("/")
        await page.keyboard.type("r0")
        await expect(page.locator("a.node")).to_have_count(32)
    await page.close()


async def test_a_job_is_drawn_where_it_runs_with_its_times_and_its_costs(browser: Browser, past: Path) -> None:
    shown = await seen(browser)
    page = shown.page
    world = (*WORLD, pod("finetune", 8, namespace="research", on="b"))
    async with served(FakeSource(*world), past=FakePast(past)) as (client, _):
        await shown.open(f"{url_of(client)}job/research/finetune")
        wiring = page.locator("svg.wiring")
        await expect(wiring).to_have_attribute(
            "aria-label", re.compile("NVLinks: 0 to 1, 12; .*NIC 3, 50 GB/s: PIX to GPUs 6, 7")
        )
        await expect(page.locator(".domain h3")).to_contain_text("r2")
        # The history has two earlier runs of this name.
        await expect(page.locator(".lane-name")).to_have_text(["research/finetune", "finetune-1-0", "finetune-2-0"])
        await expect(page.locator(".track").nth(1)).to_have_attribute(
            "aria-label", re.compile("waited 30m, started up 2m, ran 2d")
        )
        await expect(page.locator(".steps")).to_contain_text("finetune-1-0 preempted: preempted for product/serve")
        await expect(page.get_by_text("5,779.20 USD")).to_be_visible()
        await shown.check()
        await shown.open(f"{url_of(client)}job/team-a/waits")
        await expect(page.locator(".steps")).to_contain_text("submitted")
        await expect(page.locator("main")).to_contain_text("The history has no record of it")
        await shown.open(f"{url_of(client)}node/a")
        await expect(wiring).to_have_attribute("aria-label", re.compile("NVLink switches between all of them"))
        processes = page.get_by_role("table", name="Processes")
        await expect(processes.locator("tbody tr")).to_have_count(4)
        await expect(page.get_by_text("2 processes of no pod that holds the GPU.")).to_be_visible()
        await expect(processes).to_contain_text("of a pod that does not hold it")
        await shown.open(url_of(client))
        await expect(page.locator(".cards")).to_contain_text("USD wasted, of 220.16")
        await shown.check()
    await page.close()


async def test_teams_have_their_last_days(browser: Browser, past: Path) -> None:
    shown = await seen(browser)
    own = {"namespaces": {"names": ["research"]}}
    world = (
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "research"}},
        {"apiVersion": "dovetail.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "research"}, "spec": own},
        node("a"),
    )  # fmt: skip
    async with served(FakeSource(*world), past=FakePast(past)) as (client, _):
        await shown.open(f"{url_of(client)}teams")
        line = shown.page.locator(".spark")
        await expect(line).to_have_attribute("aria-label", re.compile("2027-01-08: 456 allocated, 323.3 used"))
        await expect(line.locator("polyline")).to_have_count(2)
        await shown.check()
    await shown.page.close()


async def test_teams_have_their_shares_and_credit_over_time_with_gaps(browser: Browser, past: Path) -> None:
    shown, times = await seen(browser), iter(range(NOW_MS - 600_000, NOW_MS, 60_000))
    source = FakeSource(node("a"), pod("runs", 3, on="a"))
    samples = ShareSamples(source, lambda: next(times))
    for number in range(7):
        source.why = "no scheduler leads" if number in (3, 4) else ""
        await samples.sample()
    sources = SchedulerSources(shares=samples)
    async with served(source, past=FakePast(past), scheduler=sources) as (client, _):
        await shown.open(f"{url_of(client)}teams")
        share, credit = shown.page.locator(".spark").first, shown.page.locator(".spark").last
        await expect(share).to_have_attribute("aria-label", re.compile("GPUs due: 3 at first, 3 now.*not known for 3m"))
        await expect(credit).to_have_attribute("aria-label", re.compile("credit in GPU-hours: "))
        await expect(share.locator("rect")).to_have_count(1)
        await expect(shown.page.locator("main")).to_contain_text("the history does not have it")
        await expect(shown.page.locator("main")).to_contain_text("The scheduler last did not answer")
        await shown.check()
    await shown.page.close()


async def test_older_samples_of_each_half_hour_have_no_gaps_between_them(browser: Browser, past: Path) -> None:
    shown, times = await seen(browser), iter(range(NOW_MS - 500 * 60_000, NOW_MS + 60_000, 60_000))
    source = FakeSource(node("a"), pod("runs", 3, on="a"))
    samples = ShareSamples(source, lambda: next(times))
    for _ in range(499):
        await samples.sample()
    sources = SchedulerSources(shares=samples)
    async with served(source, past=FakePast(past), scheduler=sources) as (client, _):
        await shown.open(f"{url_of(client)}teams")
        share = shown.page.locator(".spark").first
        await expect(share).to_have_attribute("aria-label", re.compile("GPUs due: 3 at first, 3 now"))
        await expect(share.locator("rect")).to_have_count(0)
    await shown.page.close()


async def test_costs_by_what_and_of_which_period_are_in_the_address(browser: Browser, past: Path) -> None:
    shown = await seen(browser)
    page = shown.page
    async with served(FakeSource(*WORLD), past=FakePast(past)) as (client, _):
        await shown.open(f"{url_of(client)}cost")
        await expect(page.locator("tbody tr").first).to_contain_text("research")
        await expect(page.get_by_role("region", name="Budgets")).to_contain_text("31,000.00")
        await page.get_by_label("By").focus()
        await page.get_by_label("By").select_option("job")
        await expect(page).to_have_url(re.compile(r"/cost\?by=job$"))
        await expect(page.locator("tbody a").first).to_have_attribute("href", "/job/research/pretrain-7b")
        await expect(page.get_by_label("By")).to_be_focused()
        await page.get_by_label("Period", exact=True).and_(page.locator("input")).fill("yesterday")
        await page.keyboard.press("Enter")
        await expect(page.locator(".empty")).to_contain_text("yesterday")
        await page.get_by_role("button", name="7d").click()
        await expect(page).to_have_url(re.compile(r"/cost\?by=job&period=7d$"))
        await expect(page.get_by_role("region", name="Costs").locator("tbody tr")).to_have_count(10)
        await shown.open(page.url)
        await expect(page.get_by_role("region", name="Costs").locator("tbody tr")).to_have_count(10)
        await page.emulate_media(media="print")
        await expect(page.locator("form.bar")).to_be_hidden()
        await expect(page.get_by_role("table", name="Costs")).to_be_visible()
    assert not shown.errors or all("404" in one for one in shown.errors)
    await page.close()


async def test_a_page_follows_the_cluster_and_shows_what_is_old_since_when(browser: Browser) -> None:
    shown = await seen(browser)
    page, source = shown.page, FakeSource(node("a"))
    listening = bound("127.0.0.1:0")
    port = listening.getsockname()[1]
    async with serving(PageBoard(source, (), lambda: NOW_MS), OwnAccess(), listening):
        await shown.open(f"http://127.0.0.1:{port}/")
        await expect(page.locator(".status")).to_contain_text("live")
        source.put(node("a"), pod("runs", 3, on="a"))
        await expect(page.locator("a.node")).to_have_attribute("title", re.compile("3 in use"))
        source.why = "no scheduler leads"
        source.changed.set()
        await expect(page.locator(".old")).to_contain_text("no scheduler leads")
        await expect(page.locator("a.node")).to_have_count(1)
        source.why = ""
        await expect(page.locator(".old")).to_have_count(0)
    await expect(page.locator(".old")).to_contain_text("The connection to the dashboard is lost since")
    source.put(node("a"), node("b"))
    async with serving(PageBoard(source, (), lambda: NOW_MS), OwnAccess(), bound(f"127.0.0.1:{port}")):
        await expect(page.locator("a.node")).to_have_count(2)
        await expect(page.locator(".old")).to_have_count(0)
    await page.close()


async def test_the_filter_keeps_the_focus_while_a_window_is_not_answered(browser: Browser) -> None:
    shown = await seen(browser)
    page, source = shown.page, FakeSource(node("a"), pod("runs", 3, on="a"), pod("waits", 9))
    async with served(source) as (client, _):
        await shown.open(f"{url_of(client)}jobs")
        rows, field = page.locator("tbody tr"), page.get_by_role("searchbox")
        await page.keyboard.press("/")
        await page.keyboard.type("runs")
        await expect(rows).to_have_count(1)
        source.why = "no scheduler leads"
        await page.keyboard.type("-not")
        await expect(page.locator(".old")).to_contain_text("no scheduler leads")
        await expect(field).to_be_focused()
        await page.keyboard.type("-here")
        await expect(field).to_have_value("runs-not-here")
        await expect(rows).to_have_count(1)
        source.why = ""
        source.changed.set()
        await expect(page.locator("p.none")).to_contain_text("No job has “runs-not-here”")
        await expect(page.locator(".old")).to_have_count(0)
        await expect(field).to_be_focused()
    await page.close()


async def test_what_a_change_would_do_is_asked_and_shown(browser: Browser) -> None:
    shown = await seen(browser)
    page = shown.page
    async with served(FakeSource(*WORLD)) as (client, _):
        await shown.open(f"{url_of(client)}whatif")
        await page.get_by_role("slider", name="Pods").focus()
        await page.keyboard.press("Home")
        await page.get_by_label("GPUs of each, as a number").fill("4")
        await page.get_by_role("button", name="What if?").click()
        await expect(page.locator("tbody").first).to_contain_text("default/what-if")
        await expect(page.locator("tbody").first).to_contain_text("starts now")
        await shown.check()
        await page.get_by_role("button", name="Drain nodes").click()
        await expect(page).to_have_url(re.compile("kind=drain$"))
        await expect(page.get_by_role("button", name="What if?")).to_be_disabled()
        await page.get_by_label("Nodes", exact=True).fill("none")
        await page.get_by_role("button", name="What if?").click()
        await expect(page.locator(".empty")).to_contain_text("none")
        shown.errors.clear()  # The browser reports the status 400.
        await page.get_by_label("Nodes", exact=True).fill("a b")
        await page.keyboard.press("Enter")
        await expect(page.locator("main")).to_contain_text("no controller")
        await shown.check()
    await page.close()


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
async def test_the_scheduler_and_its_decisions(browser: Browser, width: int, scheme: str, recording: Path) -> None:
    shown = await seen(browser, width, scheme)
    page = shown.page
    replica = Replica()
    async with replica as url:
        sources = SchedulerSources(SchedulerMetrics(url, lambda: NOW_MS), RecordedDecisions(recording))
        async with served(FakeSource(*WORLD), scheduler=sources) as (client, _):
            await shown.open(f"{url_of(client)}scheduler")
            await expect(page.locator("main")).to_contain_text("NoNodeFits")
            await shown.check()
            await page.get_by_label("A decision").fill("run1-2")
            await page.keyboard.press("Enter")
            await expect(page.locator("h1")).to_have_text("Decision run1-2")
            await expect(page.locator("tbody")).to_contain_text("ns/late")
            await shown.check()
            await page.go_back()
            await expect(page.locator("h1")).to_have_text("Scheduler")
            if scheme == "dark":  # What the page asks for every five seconds does not depend on how it is shown.
                replica.status = 503
                await expect(page.locator(".old")).to_contain_text("the scheduler answers 503")
                await expect(page.locator("main")).to_contain_text("NoNodeFits")
                replica.status = 200
                await expect(page.locator(".old")).to_have_count(0)
    await page.close()


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
async def test_a_node_is_drained_and_a_job_suspended_by_keyboard(
    browser: Browser, past: Path, width: int, scheme: str
) -> None:  # fmt: skip
    shown = await seen(browser, width, scheme)
    page = shown.page
    async with acting.playing() as playground:
        viewers = acting.viewers_of(playground)
        async with served(FakeSource(*acting.WORLD), past=FakePast(past), viewers=viewers) as (client, _):
            await shown.open(f"{url_of(client)}node/a")
            await expect(page.get_by_role("button", name="Drain")).to_have_count(0)
            await page.goto("about:blank")
            await shown.open(f"{url_of(client)}node/a#key={viewers.key}")
            await expect(page).to_have_url(f"{url_of(client)}node/a")
            await page.get_by_role("button", name="Drain").focus()
            await page.keyboard.press("Enter")
            dialog = page.get_by_role("dialog")
            await dialog.get_by_label("What happens to its pods").select_option("Evict")
            await dialog.get_by_label("Reason").fill(HOSTILE[:200])
            await page.keyboard.press("Enter")
            await expect(dialog).to_contain_text("GPU-minutes of work lost")
            await expect(dialog.get_by_role("table")).to_contain_text("team-a/train-0")
            assert acting.maintenance(playground) is None
            await shown.check()
            # Another reason is another action: its dry run comes first.
            await dialog.get_by_label("Reason").fill("fans")
            await expect(dialog.get_by_role("button", name="Drain a")).to_have_count(0)
            await page.keyboard.press("Enter")
            await dialog.get_by_role("button", name="Drain a").click()
            await expect(dialog).to_contain_text("Recorded: an event on the Node")
            assert acting.maintenance(playground)["reason"] == "fans"
            await shown.check()
            await page.keyboard.press("Escape")
            await expect(page.get_by_role("dialog")).to_have_count(0)
            await page.goto(f"{url_of(client)}job/team-a/train")
            await page.get_by_role("button", name="Suspend").click()
            await page.get_by_role("button", name="Dry run").click()
            await expect(dialog).to_contain_text("Work of 480 GPU-minutes")
            await page.get_by_role("button", name="Suspend Job team-a/train").click()
            await expect(dialog).to_contain_text("dovetail release job/team-a/train")
            await shown.check()
    await page.close()


async def test_two_users_see_what_each_may(browser: Browser) -> None:
    shown = await seen(browser)
    page = shown.page
    async with served(FakeSource(*WORLD), OnlyTeamA()) as (client, _):
        await page.goto(f"{url_of(client)}jobs")
        await page.get_by_label("Token").fill("a")
        await page.get_by_role("button", name="Show").click()
        await expect(page.locator("h2")).to_have_text("You may not see this")
        await page.get_by_label("Token").fill("a")
        await page.get_by_label("Namespace").fill("team-a")
        await page.get_by_role("button", name="Show").click()
        await expect(page.locator("tbody")).to_contain_text("team-a/waits")
        assert "secret" not in await page.content()
        await page.get_by_role("link", name="Fleet", exact=True).click()
        await expect(page.locator("a.node")).to_have_count(2)
        await expect(page).to_have_url(re.compile(r"/\?namespace=team-a$"))
        await page.get_by_role("button", name="Forget token").click()
        await page.get_by_label("Token").fill("admin")
        await page.get_by_label("Namespace").fill("")
        await page.get_by_role("button", name="Show").click()
        await page.get_by_role("link", name="Jobs", exact=True).click()
        await expect(page.locator("tbody")).to_contain_text("team-b/secret-name")
    await page.close()
