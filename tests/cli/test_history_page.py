"""The page of `tandem history --html`: opened in a real browser, whatever is in the log."""

from __future__ import annotations

import asyncio
import re
import xml.etree.ElementTree as ET
from collections.abc import Awaitable, Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from cli import browser, histories
from cli.invoke import Tandem
from tandem.cli.history_model import entries, segment_lifetimes
from tandem.cli.history_page import MOST_ROWS, page
from tandem.cli.history_svg import MOST_BANDS, ROW, scene, svg
from tandem.cli.history_svg import MOST_ROWS as MOST_DRAWN
from tandem.timeline.names import foreign_name

HOSTILE = (
    '<script>document.title="taken"</script>"\'><img src=x onerror=alert(1)>]]></svg>'
    '<a href="javascript:alert(1)">\u202e\x1b[31m\x00'
)

LOOK = """(() => {
  const svg = document.querySelector("figure svg"), sheet = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text")];
  const outside = [...svg.querySelectorAll("text,rect,circle,path")].filter(e => {
    const b = e.getBoundingClientRect();
    return b.left < sheet.left - 1 || b.right > sheet.right + 1 ||
           b.top < sheet.top - 1 || b.bottom > sheet.bottom + 1;
  }).map(e => e.textContent || e.outerHTML);
  return {
    title: document.title, outside,
    scripts: document.scripts.length, images: document.images.length, links: document.links.length,
    sheet: [sheet.width, sheet.height],
    texts: texts.map(e => e.textContent),
    invisible: texts.filter(e => e.getBoundingClientRect().width === 0).length,
    arrows: svg.querySelectorAll(".arrow").length, bands: svg.querySelectorAll(".river").length,
    bars: svg.querySelectorAll(".bar").length,
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    paper: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(svg.querySelector("text.bold")).fill,
    rows: document.querySelectorAll("tbody tr").length,
    codes: [...document.querySelectorAll(".stories code")].map(e => e.textContent),
  };
})()"""


def write(folder: Path, log: histories.Log, title: str = "flights") -> Path:
    file = folder / "history.html"
    file.write_text(page(log.commits(), title=title, location="s3://lake/flights"), "utf-8")
    return file


def look(steps: Callable[[browser.Page], Awaitable[Any]]) -> Any:
    async def work() -> Any:
        async with browser.browser() as tab:
            return await steps(tab)

    return asyncio.run(work())


def test_a_browser_shows_the_page(tmp_path: Path) -> None:
    """One browser for all: nothing is fetched, nothing runs, everything is where it can be seen,
    light and dark, of two versions and of two thousand, with whatever names."""
    two = histories.Log()
    two.append(histories.DELTA_RS, "a", 3)
    two.append(histories.DELTA_RS, "b", 3)
    logs = {"story": histories.story(), "two": two, "again": histories.again(),
            "long": histories.long(2_000), "hostile": histories.story(HOSTILE)}  # fmt: skip
    files = {}
    for name, log in logs.items():
        (tmp_path / name).mkdir()
        files[name] = write(tmp_path / name, log, HOSTILE if name == "hostile" else name)

    async def steps(tab: browser.Page) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, file in files.items():
            await tab.open(file)
            found[name] = await tab.evaluate(LOOK)
        await tab.open(files["story"], dark=True, width=390)
        found["dark"] = await tab.evaluate(LOOK)
        tree = await tab.call("Accessibility.getFullAXTree")
        found["spoken"] = [
            node["name"]["value"] for node in tree["nodes"] if node["role"]["value"] == "image"
        ]
        found["requests"], found["errors"] = tab.requests, tab.errors
        return found

    found = look(steps)
    # It is itself, and asks for nothing.
    assert {url.split(":")[0] for url in found["requests"]} == {"file"}
    assert len(found["requests"]) == len(files) + 1
    assert found["errors"] == []
    for name in (*files, "dark"):
        seen = found[name]
        assert (seen["scripts"], seen["images"], seen["links"]) == (0, 0, 0), name
        assert seen["outside"] == [], name
        assert seen["invisible"] == 0, name
        assert seen["wide"] <= 0, f"{name}: the page scrolls sideways, not the picture"
    story = found["story"]
    assert {"0.1", "0.2", "2,113 rows deleted by 5 replayed onto 0.1"} <= set(story["texts"])
    assert any(text.startswith("80,000 rows masked because of 10") for text in story["texts"])
    assert (story["bars"], story["arrows"], story["rows"]) == (3, 4, 14)
    assert found["two"]["rows"] == 2
    assert "executed again after 3" in found["again"]["texts"]
    assert (found["again"]["arrows"], found["again"]["codes"]) == (1, [histories.DELTA_RS])
    # Long ones are bounded.
    assert found["long"]["rows"] == MOST_ROWS
    assert found["long"]["sheet"][1] < ROW * (MOST_DRAWN + 2)
    assert found["long"]["bars"] > 5
    # Names are shown as they are, and do nothing.
    assert found["hostile"]["title"].startswith("History of <script>")
    assert any("<script>" in text for text in found["hostile"]["texts"])
    # Dark is dark.
    light, dark = ([sum(map(int, re.findall(r"\d+", found[name][what])[:3]))
                    for what in ("paper", "ink")] for name in ("story", "dark"))  # fmt: skip
    assert light[0] > 600 > 300 > light[1]
    assert dark[0] < 150 < 500 < dark[1]
    # A screen reader announces the picture.
    [spoken] = found["spoken"]
    assert "History of story" in spoken


class Balanced(HTMLParser):
    """Every tag is closed, in order; whatever could act is noted."""

    VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}


@pytest.mark.parametrize("engine", [histories.DELTA_RS, HOSTILE])
def test_the_page_is_well_formed_and_inert(engine: str) -> None:
    log = histories.story(engine)
    text = page(log.commits(), title=engine, location=f"file:///{engine}")
    parser = Balanced()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    assert not parser.seen & {"script", "img", "link", "iframe", "a", "object", "image", "use"}
    assert not [name for name in parser.attributes if name.startswith("on") or "href" in name]
    assert "default-src 'none'" in text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_the_picture_is_valid_on_its_own() -> None:
    commits = histories.story(HOSTILE).commits()
    drawn = scene(entries(commits), segment_lifetimes(commits))
    text = svg(drawn, HOSTILE[:60], "d", standalone=True)
    root = ET.fromstring(text.replace("\x00", "").replace("\x1b", ""))
    assert root.tag.endswith("svg")
    assert len(text) < 100_000


def test_segments_are_linked_to_the_segments_that_replaced_them() -> None:
    commits = histories.story().commits()
    drawn = scene(entries(commits), segment_lifetimes(commits))
    into = {
        name: [child for it in river.into for child in it.names]
        for river in drawn.bands
        for name in river.names
    }
    assert {into[str(number)][0] for number in range(4)} == {"0.1"}
    assert {into[name][0] for name in ("0.1", "4", "5")} == {"0.2"}
    assert into["0.2"] == []
    # The child goes on where its largest parent was, the first of them.
    place = {name: river.place for river in drawn.bands for name in river.names}
    assert place["0"] == place["0.1"] == place["0.2"]
    assert len({place[str(number)] for number in range(4)}) == 4


def test_a_long_history_is_folded() -> None:
    commits = histories.long(600).commits()
    drawn = scene(entries(commits), segment_lifetimes(commits))
    assert len(drawn.rows) <= MOST_DRAWN
    assert drawn.places <= MOST_BANDS
    shown = [entry.version for row in drawn.rows for entry in row.entries]
    assert shown == list(range(len(commits)))
    assert drawn.rows[0].earlier


def test_many_foreign_commits_hide_no_operation_in_the_picture() -> None:
    log = histories.story()
    for number in range(200):
        log.mark(histories.SPARK, {"c2.parquet": 81_000 + number})
    commits = log.commits()
    drawn = scene(entries(commits), segment_lifetimes(commits))
    assert [span.entry.author for span in drawn.spans] == [
        "TableCompaction/nightly", "TableUpdate/add-15-minutes", "TableCompaction/hourly",
    ]  # fmt: skip
    assert drawn.hidden_spans == 0
    assert len(drawn.rows[-2].entries) == 200  # and the latest by itself
    # What others rewrote again and again comes from where it came from at first.
    for number in range(100):
        name = "theirs.parquet" if not number else f"again-{number - 1}.parquet"
        add = histories.file(f"again-{number}.parquet", 120_000)
        log.commit("UPDATE", histories.SPARK, adds=[add], removes=[name])
    commits = log.commits()
    drawn = scene(entries(commits), segment_lifetimes(commits))
    [first] = [river for river in drawn.bands if foreign_name("theirs.parquet") in river.names]
    assert [kid.names for kid in first.into] == [[foreign_name("again-98.parquet")]]


def test_the_command_writes_the_page(tandem: Tandem, tmp_path: Path) -> None:
    table = histories.story().write(tmp_path / "lake")
    file = tmp_path / "page.html"
    done = tandem("history", table, "--html", file)
    assert (done.exit_code, done.stdout) == (0, "")
    assert f"Wrote {file}." in done.stderr
    text = file.read_text()
    assert "<title>History of lake</title>" in text
    assert tandem("history", table, "--html", "-").stdout == text
    for wrong, why in ((tmp_path, "Is a directory"), (tmp_path / "no" / "x", "No such file")):
        refused = tandem("history", table, "--html", wrong)
        assert refused.exit_code == 2
        assert "--html: the page cannot be written" in refused.stderr
        assert f"found:    {wrong}: {why}" in refused.stderr
    assert "versions 12 to 13" in tandem("history", table, "--html", "-", "--limit", "2").stdout
