"""The documentation site: it builds without a warning, its menu has every page, a browser shows all of each page."""

import functools
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from browser import Browser

pytest.importorskip("mkdocs", reason="the site needs softnce[docs]")

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_dead_link_fails_the_command_of_make_docs(tmp_path: Path) -> None:
    command = re.search(r"\$\(BIN\)/mkdocs (build .*) --site-dir", (ROOT / "Makefile").read_text())[1].split()
    (tmp_path / "docs").mkdir()
    (tmp_path / "mkdocs.yml").write_text("site_name: two pages\n")
    for link, code in (("other.md", 0), ("missing.md", 1)):
        (tmp_path / "docs" / "index.md").write_text(f"[link]({link})\n")
        (tmp_path / "docs" / "other.md").write_text("# Other\n")
        done = subprocess.run([sys.executable, "-m", "mkdocs", *command], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == code, done.stderr


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Pages are served: read from files, their search has no index."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_every_page_is_in_the_menu() -> None:
    menu = set(re.findall(r"^ +- (?:[\w ,]+: )?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert menu == {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}


@pytest.mark.slow
def test_links_lead_somewhere(site: Path) -> None:
    losses = (site / "api" / "losses.html").read_text(encoding="utf-8")
    assert 'id="softnce.losses.ExpectedInfoNCE"' in losses
    assert ":class:" not in losses  # roles became links
    assert "<blockquote>" not in losses  # examples are code: Markdown reads >>> as a quotation
    targets = (site / "api" / "targets.html").read_text(encoding="utf-8")
    assert 'id="softnce.SoftTargets.from_labels"' in targets  # inherited
    for page in site.rglob("*.html"):  # also links that Markdown does not check
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"<p>- |\n- |:math:|::</p>|====", re.sub(r"<pre.*?</pre>", "", text, flags=re.DOTALL)), (
            page
        )
        for link in re.findall(r'(?:href|src)="(?!https?:|data:|mailto:|/)([^"#?]+)', text):
            assert (page.parent / link).exists(), f"{page.relative_to(site)} links to {link}"


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_nothing_is_cut_off(site: Path, address: str, browser: Browser, width: int, scheme: str) -> None:
    """On a wide screen code and tables fit; on a phone they scroll inside themselves. No name in a table is broken."""
    browser.resize(width)
    browser.prefer(scheme)
    browser.open(
        "about:blank"
    )  # while no page is open that would store it again, forget the scheme of an earlier visit
    browser.call("Storage.clearDataForOrigin", origin=address, storageTypes="local_storage")
    found = {}
    for page in sorted(site.rglob("*.html")):
        browser.open(f"{address}/{page.relative_to(site).as_posix()}")
        browser.run("until(() => document.querySelectorAll('.md-typeset__table').length"
                    " == document.querySelectorAll('.md-typeset table:not([class])').length)")  # fmt: skip
        cut = browser.run("""[
          ...[...document.querySelectorAll('.md-typeset :is(h1, h2, h3, p, li, dt)')]
            .filter(e => e.offsetParent && e.getBoundingClientRect().right > innerWidth + 1),
          ...[...document.querySelectorAll('pre > code, .md-typeset__scrollwrap')]
            .filter(e => innerWidth > 1000 && e.scrollWidth > e.clientWidth + 1),
          ...[...document.querySelectorAll('td code')]
            .filter(e => e.getClientRects().length > 1 && /^\\w{1,24}$/.test(e.textContent)),
          ...[...document.querySelectorAll('.md-typeset p > img')]
            .filter(e => innerWidth < 500 && e.getBoundingClientRect().height < 150),
        ].map(e => e.alt || e.textContent.trim().slice(0, 60))""")
        wider = browser.run("document.documentElement.scrollWidth > innerWidth")
        if wider or cut or browser.errors:
            found[page.relative_to(site).as_posix()] = wider, cut, list(browser.errors)
    assert found == {}
    shown = browser.run("document.body.getAttribute('data-md-color-scheme')")
    assert shown == {"light": "default", "dark": "slate"}[scheme]
