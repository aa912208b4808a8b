"""Pictures of the runs of tasks, as HTML without any other file."""

from __future__ import annotations

import hashlib
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from millrace._calls._task_runs import Run
from millrace._cluster._cluster_html import size, table
from millrace._values._keys import prefix

#: Most runs that are drawn.
_MOST_RUNS = 20_000
#: Width of a picture, and height of a lane, in pixels.
_WIDTH, _LANE = 1000, 14


class TaskPlot:
    """A picture of runs: a line for each slot, and time from left to right."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = list(runs)

    def _repr_html_(self) -> str:
        return f"{_picture(self._runs[-_MOST_RUNS:])}{functions_table(self._runs)}"

    def save(self, filename: str) -> None:
        """Writes the picture into an HTML file."""
        Path(filename).write_text(page("Task stream", self._repr_html_()), encoding="utf-8")


def page(title: str, body: str) -> str:
    """Returns an HTML page."""
    style = "body{font-family:sans-serif;font-size:14px;margin:24px}pre{background:#8882;padding:8px;overflow:auto}"
    return (
        f'<!doctype html><html><head><meta charset="utf-8"><title>{html.escape(title)}</title><style>{style}</style>'
        f"</head><body><h1>{html.escape(title)}</h1>{body}</body></html>\n"
    )


def functions_table(runs: Sequence[Run]) -> str:
    """Returns a table of the functions that ran: their number, times and bytes."""
    sums: dict[str, list[float]] = {}
    for run in runs:
        span = run["startstops"][0]
        row = sums.setdefault(prefix(run["key"]), [0, 0.0, 0, 0])
        row[0] += 1
        row[1] += span["stop"] - span["start"]
        row[2] += run["nbytes"]
        row[3] += run["status"] != "OK"
    rows = [
        (_name(name), f"{n:.0f}", f"{total:.3f} s", f"{1000 * total / n:.3f} ms", size(nbytes), f"{failed:.0f}")
        for name, (n, total, nbytes, failed) in sorted(sums.items(), key=lambda item: -item[1][1])
    ]
    return table(("function", "runs", "time", "mean", "results", "failed"), rows)


def _name(name: str) -> str:
    box = f'<span style="display:inline-block;width:10px;height:10px;background:{colour(name)}"></span>'
    return f"{box} <code>{html.escape(name)}</code>"


def colour(name: str) -> str:
    """Returns a colour for a name, always the same."""
    return f"hsl({int(hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()[:8], 16) % 360},60%,55%)"


def _picture(runs: Sequence[Run]) -> str:
    if not runs:
        return "<p>No task ran.</p>"
    begin = min(r["startstops"][0]["start"] for r in runs)
    scale = _WIDTH / max(max(r["startstops"][0]["stop"] for r in runs) - begin, 1e-9)
    lanes = {lane: i for i, lane in enumerate(sorted({(r["worker"], r["thread"]) for r in runs}))}
    boxes = [_box(r, lanes[(r["worker"], r["thread"])], begin, scale) for r in runs]
    names = [
        f'<text x="4" y="{_LANE * i + 11}" font-size="10">{html.escape(worker)} {lane}</text>'
        for (worker, lane), i in lanes.items()
    ]
    height = _LANE * len(lanes)
    return (
        f"<p>{len(runs)} runs in {_WIDTH / scale:.3f} s</p>"
        f'<svg width="{_WIDTH + 120}" height="{height}" viewBox="-120 0 {_WIDTH + 120} {height}">'
        f'<g transform="translate(-120,0)">{"".join(names)}</g>{"".join(boxes)}</svg>'
    )


def _box(run: Run, lane: int, begin: float, scale: float) -> str:
    span: dict[str, Any] = run["startstops"][0]
    width = max((span["stop"] - span["start"]) * scale, 0.5)
    stroke = "" if run["status"] == "OK" else ' stroke="#000" stroke-width="2"'
    told = f"{run['key']}: {1000 * (span['stop'] - span['start']):.3f} ms on {run['worker']}, {size(run['nbytes'])}"
    return (
        f'<rect x="{(span["start"] - begin) * scale:.2f}" y="{_LANE * lane + 1}" width="{width:.2f}" height="{_LANE - 2}" '
        f'fill="{colour(prefix(run["key"]))}"{stroke}><title>{html.escape(told)}</title></rect>'
    )
