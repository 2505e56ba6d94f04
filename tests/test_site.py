"""The site in a browser: pages load without an error, every image appears, nothing is wider than the screen."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CUT = """
const width = document.documentElement.clientWidth;
const scrolls = e => e && (/auto|scroll|hidden/.test(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
return [...document.querySelectorAll("article *")]
    .filter(e => e.getBoundingClientRect().right > width + 1 && e.getClientRects().length && !scrolls(e))
    .map(e => e.tagName + " " + e.textContent.trim().slice(0, 40));
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the site needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("localhost", 0), partial(Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="the browser needs the extra dev")
    if BROWSER is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.mark.slow
def test_links_of_the_site_lead_somewhere(site: Path) -> None:
    for page in site.rglob("*.html"):  # also links that Markdown does not check
        text = page.read_text(encoding="utf-8")
        for link in re.findall(r'(?:href|src)="(?!https?:|data:|mailto:|/)([^"#?]+)', text):
            assert (page.parent / link).exists(), f"{page.relative_to(site)} links to {link}"


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_pages_are_whole(site: Path, address: str, browser: Any, width: int, scheme: str) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.route(lambda url: not url.startswith(address), lambda route: route.abort())
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(f"{page.url}: {error}"))
    page.on("console", lambda line: failures.append(f"{page.url}: {line.text}") if line.type == "error" else None)
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site).as_posix()
        page.goto(f"{address}/{name}")
        for image in page.locator("article img:visible").all():
            image.scroll_into_view_if_needed()
            assert image.evaluate("e => e.decode().then(() => e.naturalWidth)") > 0, name
        assert page.evaluate(f"() => {{{CUT}}}") == [], f"{name} is wider than {width} px"
    assert failures == []
    page.close()
