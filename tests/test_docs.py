"""The documentation site: it builds without a warning and its menu has every page."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="the site needs softnce[docs]")

ROOT = Path(__file__).parent.parent


def test_every_page_is_in_the_menu() -> None:
    menu = set(re.findall(r"^ +- (?:[\w ,]+: )?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert menu == {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    losses = (tmp_path / "api" / "losses.html").read_text(encoding="utf-8")
    assert 'id="softnce.losses.ExpectedInfoNCE"' in losses
    assert ":class:" not in losses  # roles became links
    for page in tmp_path.rglob("*.html"):  # also links that Markdown does not check
        for link in re.findall(r'(?:href|src)="(?!https?:|data:|mailto:|/)([^"#?]+)', page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.relative_to(tmp_path)} links to {link}"
