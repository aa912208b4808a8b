"""Profiles: where the functions of tasks spend time, as trees of calls."""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from millrace._calls._task_plot import colour, page
from millrace._pb.millrace.v1 import executor_service_pb2

#: A tree of calls: a dict with "count", the number of samples; "identifier"; "description", a dict
#: with "filename", "name", "line_number" and "line"; and "children", trees by identifier.
Profile = dict[str, Any]

#: Width of a picture, height of a call, and width of the narrowest call that is drawn, in pixels.
_WIDTH, _HEIGHT, _NARROW = 1000, 17, 0.5


def _call(identifier: str, name: str, file: str, number: int, line: str) -> Profile:
    description = {"filename": file, "name": name, "line_number": number, "line": line}
    return {"count": 0, "identifier": identifier, "description": description, "children": {}}


def merged(answers: Iterable[executor_service_pb2.GetProfileResponse]) -> Profile:
    """Returns one tree of the calls that workers have collected."""
    root = _call("root", "", "", 0, "")
    for answer in answers:
        nodes = [root]
        for call in answer.calls:
            above = nodes[call.caller]
            identifier = f"{call.name};{call.file};{call.first_line}"
            node = above["children"].get(identifier)
            if node is None:
                node = _call(identifier, call.name, call.file, call.line, call.text)
                above["children"][identifier] = node
            node["count"] += call.samples
            nodes.append(node)
        root["count"] += answer.samples
    return root


class ProfilePlot:
    """A picture of a profile: a box for each call, as wide as its share of the samples, below the
    box of its caller.

    Args:
        profile: the tree of calls.
        interval: time between two samples, in seconds.
    """

    def __init__(self, profile: Profile, interval: float) -> None:
        self._profile, self._interval = profile, interval

    def _repr_html_(self) -> str:
        total = self._profile["count"]
        if not total:
            return "<p>There are no samples of this time.</p>"
        boxes: list[str] = []
        depth = _boxes(self._profile, 0.0, _WIDTH / total, 0, total, self._interval, boxes)
        return (
            f"<p>{total} samples, about {total * self._interval:.2f} s</p>"
            f'<svg width="{_WIDTH}" height="{depth * _HEIGHT}" font-family="monospace" font-size="11">{"".join(boxes)}</svg>'
        )

    def save(self, filename: str) -> None:
        """Writes the picture into an HTML file."""
        Path(filename).write_text(page("Profile", self._repr_html_()), encoding="utf-8")


def _boxes(call: Profile, left: float, scale: float, depth: int, total: int, interval: float, boxes: list[str]) -> int:
    """Draws the calls below one, and returns the number of levels."""
    deepest = depth
    for child in sorted(call["children"].values(), key=lambda c: -c["count"]):
        width = child["count"] * scale
        if width < _NARROW:
            break
        boxes.append(_box(child, left, width, depth, total, interval))
        deepest = max(deepest, _boxes(child, left, scale, depth + 1, total, interval, boxes))
        left += width
    return deepest


def _box(call: Profile, left: float, width: float, depth: int, total: int, interval: float) -> str:
    what = call["description"]
    count = call["count"]
    told = (
        f"{what['name']}\n{what['filename']}:{what['line_number']}\n{what['line']}\n"
        f"{count * interval:.2f} s, {100 * count / total:.1f} %"
    )
    top = depth * _HEIGHT
    shown = what["name"][: int(width / 7)]
    text = f'<text x="{left + 3:.1f}" y="{top + 12}">{html.escape(shown)}</text>' if shown else ""
    fill = colour(f"{what['name']};{what['filename']}")
    return (
        f'<g><title>{html.escape(told)}</title><rect x="{left:.2f}" y="{top}" width="{max(width - 0.5, 0.3):.2f}" '
        f'height="{_HEIGHT - 1}" fill="{fill}"/>{text}</g>'
    )
