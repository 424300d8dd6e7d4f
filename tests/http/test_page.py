"""The page at `/`: whole in itself, bound to the overview, and harmless."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

import kakeya.http
from tests.http.browser import CHROMIUM, Browser
from tests.http.test_overview import ROW
from tests.http.world import world

PAGE = Path(kakeya.http.__file__).with_name("page.html")
VOID = {"meta", "link", "input", "br"}


class Page(HTMLParser):
    """Elements with their attributes; fails for what is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open:
            self.texts[self._open[-1]] = self.texts.get(self._open[-1], "") + data

    def all(self, name: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.elements if name in attrs]


@pytest.fixture
async def answer(autojump_clock):
    async with world() as there:
        return await there.client().ask("GET", "/")


@pytest.fixture
def page(answer) -> Page:
    return Page(answer.body.decode())


@pytest.mark.spec("H-20")
async def test_it_asks_nobody_but_this_door(answer, page):
    assert answer.fields["content-type"] == "text/html; charset=utf-8"
    links = page.all("src") + page.all("href")
    assert all(link.startswith(("/", "data:")) for link in links)
    text = answer.body.decode()
    assert set(re.findall(r"https?://[^\"' ]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert "@import" not in text
    assert "url(" not in text
    policy = answer.fields["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(page.texts[tag].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


@pytest.mark.spec("H-20")
async def test_what_other_nodes_say_is_never_markup(page):
    script = page.texts["script"]
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in script
    # The policy would refuse styles and handlers written into elements.
    assert page.all("style") == []
    assert [name for _, attrs in page.elements for name in attrs if name.startswith("on")] == []


@pytest.mark.spec("H-20")
async def test_it_is_fit_for_phones_and_for_readers_of_the_screen(page):
    tags = [tag for tag, _ in page.elements]
    assert dict(page.elements)["html"] == {"lang": "en"}
    assert any("width=device-width" in content for content in page.all("content"))
    assert "main" in tags
    assert tags.count("h1") == 1
    ids = page.all("id")
    assert len(ids) == len(set(ids))
    for name in page.all("aria-labelledby") + page.all("for"):
        assert name in ids
    for tag, attrs in page.elements:
        if tag == "section":
            assert "aria-label" in attrs or "aria-labelledby" in attrs
        if tag == "svg":
            assert attrs.get("role") == "img"
            assert "aria-label" in attrs
        if tag == "th":
            assert attrs.get("scope") == "col"
    styles = page.texts["style"]
    assert "@media (max-width" in styles
    assert "prefers-color-scheme: dark" in styles
    assert ":focus-visible" in styles


@pytest.mark.spec("H-20", "H-19")
async def test_every_element_and_field_that_the_script_names_is_there(page, autojump_clock):
    script = page.texts["script"]
    named = set(re.findall(r"""(?:at|put)\("([a-z-]+)\"""", script))
    assert named <= set(page.all("id"))
    async with world() as there:
        there.fleet.rows = [ROW]
        view = (await there.client().ask("GET", "/fleet.json")).json
    known = {
        "view": set(view), "s": set(view["speculation"]), "g": set(view["generations"]),
        "v": set(view["verifier"]), "node": set(view["nodes"][0]),
        "m": set(view["nodes"][0]["models"][0]),
    }  # fmt: skip
    for name, fields in known.items():
        used = set(re.findall(rf"(?<![\w.\"]){name}\.([a-z_]+)", script))
        assert used, name
        assert used <= fields, name


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(scheme):
    """WCAG AA: 4.5 to 1 for text, in both schemes."""
    with PAGE.open() as file:
        styles = file.read()
    light, dark = re.findall(r":root \{(.*?)\}", styles, re.DOTALL)
    colours = dict(re.findall(r"--(\w+): (#\w{6})", light if scheme == "light" else dark))
    for ink in ("text", "soft", "good", "bad", "fast"):
        for ground in ("page", "card"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    assert contrast(colours["plain"], colours["card"]) >= 3  # a line, not a text
    assert contrast(colours["card"], colours["fast"]) >= 4.5  # the button


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.skipif(shutil.which("node") is None, reason="no node in PATH to run the script with")
def test_the_script_is_javascript(tmp_path):
    with PAGE.open() as file:
        [script] = re.findall(r"<script>(.*?)</script>", file.read(), re.DOTALL)
    (tmp_path / "page.js").write_text(script)
    done = subprocess.run(["node", "--check", str(tmp_path / "page.js")], capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome in PATH")
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_shows_it(width, door, tmp_path):
    browser = Browser(tmp_path)
    try:
        page = browser.show(f"{door.base}/", width, "document.querySelector('td') !== null")
        assert page.value("document.getElementById('node').textContent") == "attic"
        assert page.value("document.getElementById('state').textContent") == "live"
        # Nothing has to be scrolled sideways.
        assert page.value("document.documentElement.scrollWidth") == width
        assert len(page.picture()) > 5000
        assert browser.troubles == []
    finally:
        browser.close()
