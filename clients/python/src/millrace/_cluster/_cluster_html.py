"""Descriptions of clusters for people: as HTML in notebooks. It needs no script and no file from
elsewhere, so that it also works in exported notebooks and behind proxies. Only a part of the card
that is closed at first has the dashboard in a frame, which browsers load when it is opened."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any, cast

from millrace._cluster import _dashboard

#: Most workers that are listed.
_MOST_ROWS = 50
#: Most alarms that are shown.
_MOST_ALARMS = 8
#: Most slots that are drawn for a worker.
_MOST_LANES = 32

_CARD = "border:1px solid #8886;border-radius:4px;padding:8px 12px;margin:2px 0;max-width:60em;font-size:13px"
_CELL = "padding:2px 10px 2px 0;text-align:left"
_BAR = "display:inline-block;width:120px;height:9px;background:#8883;border-radius:2px;overflow:hidden"


def size(count: float) -> str:
    """Formats a number of bytes: "1.50 GiB"."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << power:
            return f"{count / (1 << power):.2f} {unit}"
    return f"{count:.0f} B"


def link(url: str) -> str:
    """Returns a link to an address."""
    safe = html.escape(url)
    return f'<a href="{safe}" target="_blank">{safe}</a>'


def bar(part: float, whole: float, colour: str = "") -> str:
    """Returns a bar that is filled in part. Without a colour it is yellow from 70 %, red from
    85 %."""
    share = min(part / whole, 1.0) if whole > 0 else 0.0
    colour = colour or ("#c33" if share >= 0.85 else "#d90" if share >= 0.7 else "#2a7")
    return (
        f'<span style="{_BAR}"><span style="display:block;height:9px;width:{100 * share:.0f}%;background:{colour}">'
        "</span></span>"
    )


#: The states of tasks in a bar, with their colours, as on the dashboard.
_TASKS = (
    ("done", ("succeeded", "released", "rescuing"), "#2a7"),
    ("failed", ("failed", "cancelled"), "#c33"),
    ("running", ("assigned", "running"), "#36c"),
    ("waiting", ("waiting", "ready"), "#8886"),
)


def overview(info: Mapping[str, Any]) -> dict[str, str]:
    """Returns lines about the tasks, the slots and the memory of a cluster that is described as in
    `Client.scheduler_info`."""
    tasks = cast("Mapping[str, int]", info["tasks"])
    counted = [(name, sum(tasks.get(s, 0) for s in states), colour) for name, states, colour in _TASKS]
    total = sum(n for _, n, _ in counted)
    parts = "".join(
        f'<span style="display:inline-block;height:9px;width:{100 * n / total:.1f}%;background:{colour}"></span>'
        for _, n, colour in counted
        if n
    )
    told = ", ".join(f"{n:,} {name}" for name, n, _ in counted if n)
    workers = cast("Sequence[Mapping[str, Any]]", list(info["workers"].values()))
    # A worker may be assigned more tasks than it has slots, so that none is idle between two.
    busy = sum(min(int(w["assigned_tasks"]), int(w["slots"])) for w in workers)
    slots = sum(int(w["slots"]) for w in workers)
    used, limit = (sum(int(w[k]) for w in workers) for k in ("memory_used", "memory_limit"))
    return {
        "tasks": f'<span style="{_BAR};white-space:nowrap">{parts}</span> {told or "none"}',
        "slots": f"{bar(busy, slots, '#36c')} {busy} of {slots} busy",
        "memory": f"{bar(used, limit)} {size(used)} of {size(limit)}",
    }


def frame(url: str) -> str:
    """Returns the dashboard at an address, in a part that is closed at first."""
    return (
        "<details><summary>Dashboard</summary>"
        f'<iframe src="{html.escape(url)}" loading="lazy" title="Dashboard" '
        'style="width:100%;height:520px;border:0"></iframe></details>'
    )


def lanes(busy: int, slots: int) -> str:
    """Returns a box for each slot; those with a task are filled."""
    shown = min(slots, _MOST_LANES)
    box = "display:inline-block;width:9px;height:9px;margin-right:2px;border-radius:2px;background:"
    boxes = "".join(f'<span style="{box}{"#36c" if i < busy else "#8883"}"></span>' for i in range(shown))
    return boxes + (f" of {slots}" if slots > shown else "")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table; the cells are HTML."""
    top = "".join(f'<th style="{_CELL}">{h}</th>' for h in head)
    body = "".join("<tr>" + "".join(f'<td style="{_CELL}">{c}</td>' for c in row) + "</tr>" for row in rows)
    return f'<table style="border-collapse:collapse"><tr>{top}</tr>{body}</table>'


def card(title: str, facts: Mapping[str, str], inside: str = "", summary: str = "", below: str = "") -> str:
    """Returns a card.

    Args:
        title: what it describes; text.
        facts: lines of it, by their names; the values are HTML.
        inside: a part that opens by a click; HTML.
        summary: the line of that part that is always seen; text.
        below: HTML below it.
    """
    lines = "".join(f"<div><b>{html.escape(k)}:</b> {v}</div>" for k, v in facts.items())
    more = f"<details><summary>{html.escape(summary)}</summary>{inside}</details>" if inside else ""
    return (
        f'<div style="{_CARD}"><div style="font-size:15px"><b>{html.escape(title)}</b></div>{lines}{more}{below}</div>'
    )


def workers_table(workers: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a table of workers that are described as in `Client.scheduler_info`."""
    rows = [
        (
            f"<code>{html.escape(name)}</code>",
            html.escape(str(w["state"])),
            html.escape(str(w["device"])),
            lanes(int(w["assigned_tasks"]), int(w["slots"])),
            f"{bar(w['memory_used'], w['memory_limit'])} {size(w['memory_used'])} of {size(w['memory_limit'])}",
            size(w["rss"]),
            str(w["finished_tasks"]),
        )
        for name, w in list(workers.items())[:_MOST_ROWS]
    ]
    more = f"<div>and {len(workers) - _MOST_ROWS} more</div>" if len(workers) > _MOST_ROWS else ""
    return table(("worker", "state", "device", "slots", "objects", "process", "finished"), rows) + more


def alarm_list(alarms: Sequence[Mapping[str, Any]]) -> str:
    """Returns a line for each alarm that is described as in `Client.scheduler_info`."""
    lines = "".join(
        f'<li style="color:{"#c33" if a["severity"] == "critical" else "#b70"}">{html.escape(str(a["text"]))}'
        f"<div>{html.escape(str(a['remedy']))}</div></li>"
        for a in alarms[:_MOST_ALARMS]
    )
    more = f"<div>and {len(alarms) - _MOST_ALARMS} more</div>" if len(alarms) > _MOST_ALARMS else ""
    return f'<ul style="margin:0">{lines}</ul>{more}'


def cluster_card(title: str, info: Mapping[str, Any], facts: Mapping[str, str] | None = None) -> str:
    """Returns a card for a description of a cluster. `facts`: more lines, as HTML."""
    workers = cast("Mapping[str, Mapping[str, Any]]", info["workers"])
    url = _dashboard.link(info["http"])
    lines = {
        "scheduler": f"<code>{html.escape(str(info['address']))}</code>",
        **({"dashboard": link(url)} if url else {}),
        **(facts or {}),
        **overview(info),
        **({"alarms": alarm_list(info["alarms"])} if info.get("alarms") else {}),
    }
    count = int(info["n_workers"])
    summary = f"{count} workers, {info['total_threads']} slots, {size(info['total_memory'])}"
    return card(title, lines, workers_table(workers), summary, frame(url) if url else "")


class ClusterDescription(dict[str, Any]):
    """The description of a cluster that `Client.scheduler_info` returns. Notebooks show it as a
    card with its workers."""

    def _repr_html_(self) -> str:
        return cluster_card("Scheduler", self)
