# SPDX-License-Identifier: Apache-2.0
"""Pictures of every web page, light and dark, at three widths, for a look by eye: the pages of `dovetail demo
--dashboard`, and their dialogs.

python -m tools.page_pictures FOLDER [PAGE...]

Of each page and width there is one file, with the light picture beside the dark one.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

from playwright.async_api import Browser, Page, ViewportSize, async_playwright

from tools import chromium

WIDTHS = {"narrow": 390, "middle": 800, "wide": 1400}
PAGES = {
    "fleet": "", "nodes": "?view=table", "queue": "queue", "jobs": "jobs", "teams": "teams", "leases": "leases",
    "waste": "waste", "cost": "cost", "whatif": "whatif", "scheduler": "scheduler", "node": "node/gpu-node-1",
    "sick": "node/gpu-node-4", "runs": "job/research/finetune", "waits": "job/default/huge", "gone": "job/default/none",
}  # fmt: skip
CLICKED = {
    "drain": ("node/gpu-node-1", ("Drain", "Dry run")),
    "notify": ("waste", ("Notify the owner", "Dry run")), "asked": ("whatif", ("What if?",)), "keys": ("", ("Keys",)),
    "palette": ("", ("Go to",)),
}  # fmt: skip
"""Pages after clicks on these buttons."""
_MOST_HEIGHT = 2600


async def _shown(page: Page, url: str, name: str) -> bytes:
    path, buttons = CLICKED.get(name) or (PAGES[name], ())
    key = url.partition("#")[2]
    await page.goto("about:blank")
    await page.goto(f"{url.partition('#')[0]}{path}#{key}")
    await page.wait_for_selector("main h1")
    await page.wait_for_selector(".loading", state="detached")
    await page.wait_for_timeout(700)
    for button in buttons:
        scope = page.get_by_role("dialog") if await page.get_by_role("dialog").count() else page
        await scope.get_by_role("button", name=button).first.click()
        await page.wait_for_timeout(1500)
    height = await page.evaluate("document.documentElement.scrollHeight")
    size = page.viewport_size
    assert size is not None
    clip = {"x": 0.0, "y": 0.0, "width": float(size["width"]), "height": float(min(height, _MOST_HEIGHT))}
    return await page.screenshot(clip=clip, full_page=True)  # type: ignore[arg-type]


async def pictures(browser: Browser, url: str, folder: Path, names: list[str]) -> None:
    """Write a file for each page and width."""
    for width_name, width in WIDTHS.items():
        size = ViewportSize(width=width, height=900)
        pages = [await browser.new_page(viewport=size, color_scheme=one) for one in ("light", "dark")]  # type: ignore[arg-type]
        sheet = await browser.new_page(viewport=ViewportSize(width=2 * width + 10, height=900))
        for name in names:
            for index, page in enumerate(pages):
                (folder / f".{index}.png").write_bytes(await _shown(page, url, name))
            images = "".join(f'<img src="file://{folder}/.{index}.png">' for index in (0, 1))
            (folder / ".sheet.html").write_text(
                f"<style>body {{ margin: 0; display: flex; align-items: flex-start; gap: 10px }}</style>{images}"
            )
            await sheet.goto(f"file://{folder}/.sheet.html")
            await sheet.screenshot(path=folder / f"{name}-{width_name}.png", full_page=True)
        for page in (*pages, sheet):
            await page.close()
    for one in (".0.png", ".1.png", ".sheet.html"):
        (folder / one).unlink()


async def main(folder: Path, names: list[str]) -> None:
    """`folder` is an absolute path."""
    command = (sys.executable, "-c", "from dovetail.cli import main; main()", "demo", "--dashboard")
    demo = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env=os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    )
    try:
        assert demo.stdout is not None
        url = ""
        while not url:
            line = (await demo.stdout.readline()).decode()
            if not line:
                raise SystemExit("the demo ended")
            found = re.search(r"http://127\.0\.0\.1:\d+/\S*", line)
            url = found[0] if found else ""
        await asyncio.sleep(12)
        async with async_playwright() as playwright:
            program = chromium.build(print)
            browser = await playwright.chromium.launch(executable_path=str(program), args=["--no-sandbox"])
            await pictures(browser, url, folder, names)
            await browser.close()
    finally:
        with suppress(ProcessLookupError):
            demo.kill()
        await demo.wait()


if __name__ == "__main__":
    into = Path(sys.argv[1]).resolve()
    into.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(into, sys.argv[2:] or [*PAGES, *CLICKED]))
