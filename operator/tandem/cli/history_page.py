"""A history as one self-contained HTML page: a picture, sentences, and a list.

Nothing is fetched and no script runs: the page's Content-Security-Policy forbids both. All text
from the log is escaped. Long histories are bounded: versions are folded, and lists are cut off.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import tandem
from tandem.cli.history_model import (
    CommitEffect,
    ConcurrentCommit,
    EntryKind,
    HistoryEntry,
    entries,
    segment_lifetimes,
)
from tandem.cli.history_svg import STYLE, Scene, arrow, cut, esc, is_work, river, scene, shape, svg
from tandem.cli.output import people_time
from tandem.delta.actions import Commit
from tandem.text import clean, counted

MOST_STORIES = 30
_NAME, _AS_CODE = re.compile(r"`([^`]+)`"), r"<code>\1</code>"
"""Names between backticks in sentences, and their HTML."""
MOST_ROWS = 300

_PAGE_STYLE = """
:root{color-scheme:light dark}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1180px;margin:0 auto;padding:28px 24px 60px}
h1{font-size:26px;margin:0}h2{font-size:18px;margin:36px 0 10px}
.lead{color:var(--soft);margin:2px 0 18px;overflow-wrap:anywhere}
.tiles{display:flex;flex-wrap:wrap;gap:10px;margin:0 0 18px;padding:0;list-style:none}
.tiles li{background:var(--band);border:1px solid var(--line);border-radius:10px;padding:8px 14px}
.tiles b{display:block;font-size:20px;line-height:1.25;font-variant-numeric:tabular-nums}
.tiles span{color:var(--soft);font-size:13px}
figure{margin:0;border:1px solid var(--line);border-radius:12px;overflow-x:auto}
figure svg{display:block}
.legend{display:flex;flex-wrap:wrap;gap:6px 18px;color:var(--soft);font-size:13px;margin:10px 2px}
.legend svg{vertical-align:-3px;margin-right:5px;background:none}
.stories{display:grid;grid-template-columns:repeat(auto-fill,minmax(330px,1fr));gap:12px;
padding:0;margin:0;list-style:none}
.stories>li{border:1px solid var(--line);border-left:4px solid var(--ours);border-radius:8px;
padding:10px 14px;overflow-wrap:anywhere}
.stories p{margin:0 0 4px;font-weight:600}.stories p span{color:var(--soft);font-weight:400}
.stories ul{margin:0;padding-left:18px}
code{font:.92em ui-monospace,Consolas,monospace}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}
th{position:sticky;top:0;background:var(--paper);color:var(--soft);text-align:left;
font-weight:600}
th,td{padding:4px 12px 4px 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n{text-align:right;white-space:nowrap}td.w{white-space:nowrap}
tr.ours td.who{color:var(--ours);font-weight:600}
summary{cursor:pointer;color:var(--soft)}
footer{color:var(--soft);font-size:13px;margin-top:40px}
@media print{figure{overflow:visible}}
"""


def page(commits: Sequence[Commit], *, title: str, location: str) -> str:
    """The page of consecutive commits, at least one, oldest first."""
    found = entries(commits)
    drawn = scene(found, segment_lifetimes(commits))
    name = clean(title) or "table"
    heading = f"History of {name}"
    first, last = found[0], found[-1]
    since, until = people_time(first.time_ms), people_time(last.time_ms)
    span = f"version {last.version}" if first is last else f"versions {first.version} to " \
        f"{last.version}"  # fmt: skip
    lead = f"{clean(location, 300)} · {span} · {since} to {until} UTC"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta http-equiv="Content-Security-Policy" '
            "content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{esc(heading)}</title>",
            f"<style>{STYLE}{_PAGE_STYLE}</style></head>",
            '<body class="tandem-history"><main>',
            f"<h1>{esc(heading)}</h1>",
            f'<p class="lead">{esc(lead)}</p>',
            _tiles(found),
            f"<figure>{svg(drawn, heading, describe(found))}</figure>",
            _legend(),
            _left_out(drawn),
            _stories(found),
            _versions(found),
            f"<footer>Written by tandem {esc(tandem.__version__)} from the Delta log. "
            "Times are UTC.</footer>",
            "</main></body></html>\n",
        ]
    )


def describe(found: Sequence[HistoryEntry]) -> str:
    """A description of the picture, for screen readers."""
    others = sum(not entry.ours for entry in found)
    sentences = [
        f"{counted(len(found), 'version')}, the newest first: {counted(others, 'commit')} of "
        f"others, {counted(len(found) - others, 'commit')} of Tandem; segments beside them."
    ]
    working = [entry for entry in found if entry.meetings]
    for entry in working[-MOST_STORIES:]:
        met = "; ".join(meeting.phrase for meeting in entry.meetings[:8])
        sentences.append(f"{entry.author}, version {entry.version}, met: {met}.")
    return " ".join(sentences)


def _tiles(found: Sequence[HistoryEntry]) -> str:
    mets = [met for entry in found for met in entry.meetings]
    facts = [
        (len(found), "version", "versions"),
        (sum(not e.ours for e in found), "commit of others", "commits of others"),
        (sum(is_work(e) for e in found), "operation of Tandem", "operations of Tandem"),
        (_rows(mets, CommitEffect.REPLAYED), "delete replayed", "deletes replayed"),
        (_rows(mets, CommitEffect.MASKED), "row masked", "rows masked"),
        (_rows(mets, CommitEffect.FOLLOWED), "row followed", "rows followed into other files"),
        (_rows(mets, CommitEffect.EVALUATED), "row evaluated again", "rows evaluated again"),
        (
            sum(any(met.effect is CommitEffect.AGAIN for met in e.meetings) for e in found),
            "statement executed again",
            "statements executed again",
        ),
    ]
    tiles = "".join(
        f"<li><b>{count:,}</b><span>{one if count == 1 else many}</span></li>"
        for count, one, many in facts
        if count
    )
    return f'<ul class="tiles">{tiles}</ul>'


def _rows(mets: Sequence[ConcurrentCommit], effect: CommitEffect) -> int:
    return sum(met.rows for met in mets if met.effect is effect)


def _legend() -> str:
    def piece(drawn: str, text: str, wide: int = 16) -> str:
        return (f'<span><svg class="tandem-history" width="{wide}" height="16" '
                f'aria-hidden="true">{drawn}</svg>{text}</span>')  # fmt: skip

    operation = shape(EntryKind.REWRITE, 8, 8, "ours") + '<path class="bar" d="M14 8H30V16"/>'
    pieces = [
        piece(shape(EntryKind.APPEND, 8, 8, "append"), "added rows"),
        piece(shape(EntryKind.CHANGE, 8, 8, "change"), "changed or deleted rows"),
        piece(shape(EntryKind.REWRITE, 8, 8, "rewrite"), "rewrote files"),
        piece(operation, "an operation of Tandem, down to the version that it read", 34),
        piece(arrow(2, 8, 26), "a concurrent commit that it reconciled with", 28),
        piece(river("s1", 6, "M8 0V16"), "a segment, up to its successors"),
        piece(cut(8, 8), "rows deleted in it"),
    ]
    return f'<p class="legend">{"".join(pieces)}</p>'


def _left_out(drawn: Scene) -> str:
    notes = []
    if drawn.hidden_spans:
        notes.append(f"{counted(drawn.hidden_spans, 'operation')} that did not fit")
    if drawn.hidden_segments:
        notes.append(f"{counted(drawn.hidden_segments, 'segment')} more")
    return f'<p class="lead">Not drawn: {"; ".join(notes)}.</p>' if notes else ""


def _stories(found: Sequence[HistoryEntry]) -> str:
    """Summaries of the operations that met other commits, newest first."""
    eventful = [e for e in found if is_work(e) and (e.meetings or len(e.summary) > 1)]
    items = []
    for entry in eventful[: -MOST_STORIES - 1 : -1]:
        texts = entry.summary or tuple(met.phrase for met in entry.meetings)
        lines = "".join(f"<li>{_NAME.sub(_AS_CODE, esc(text))}</li>" for text in texts)
        items.append(
            f"<li><p>{esc(entry.author)} <span>version {entry.version}</span></p>"
            f"<ul>{lines}</ul></li>"
        )
    if not items:
        return ""
    more = len(eventful) - len(items)
    note = f'<p class="lead">and {more:,} earlier ones</p>' if more > 0 else ""
    heading = "How operations reconciled with other commits"
    return f'<h2>{heading}</h2><ul class="stories">{"".join(items)}</ul>{note}'


def _versions(found: Sequence[HistoryEntry]) -> str:
    rows = []
    for entry in found[: -MOST_ROWS - 1 : -1]:
        cells = zip(("n", "w", "", "who", "w", "w", ""), entry.texts, strict=True)
        drawn = "".join(f'<td class="{style}">{esc(str(text))}</td>' for style, text in cells)
        rows.append(
            f'<tr id="v{entry.version}" class="{"ours" if entry.ours else ""}">{drawn}</tr>'
        )
    names = ("version", "time", "operation", "by", "files", "rows", "met")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    more = len(found) - len(rows)
    note = f'<p class="lead">and {counted(more, "earlier version")}</p>' if more else ""
    return (
        f"<h2>Versions</h2><details{' open' if len(found) <= 60 else ''}>"
        f"<summary>{counted(len(rows), 'version')}, newest first</summary>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{note}</details>"
    )
