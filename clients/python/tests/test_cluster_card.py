"""The card of a cluster, without a cluster."""

from __future__ import annotations

from typing import Any

from millrace._cluster._cluster_html import alarm_list, cluster_card

INFO: dict[str, Any] = {
    "address": "a:1", "http": "", "n_workers": 0, "total_threads": 0, "total_memory": 0, "workers": {}, "tasks": {}
}  # fmt: skip


def test_a_card_has_the_overview_and_the_dashboard() -> None:
    worker = {
        "state": "active", "device": "host", "assigned_tasks": 5, "slots": 2, "memory_used": 1 << 30,
        "memory_limit": 4 << 30, "rss": 0, "finished_tasks": 0,
    }  # fmt: skip
    tasks = {"succeeded": 3, "released": 1000, "running": 2, "assigned": 3, "ready": 7}
    text = cluster_card("Scheduler", {**INFO, "http": "h:8787", "workers": {"w": worker}, "tasks": tasks})
    assert "1,003 done, 5 running, 7 waiting" in text and "2 of 2 busy" in text and "1.00 GiB of 4.00 GiB" in text
    # The frame is loaded when it is opened.
    assert '<iframe src="http://h:8787/" loading="lazy"' in text
    quiet = cluster_card("Scheduler", INFO)
    assert "<iframe" not in quiet and "none" in quiet and "0 of 0 busy" in quiet


def test_a_card_shows_alarms_with_their_remedies() -> None:
    alarm = {"severity": "critical", "text": "worker a cannot write <objects>", "remedy": "make room"}
    quiet = cluster_card("Scheduler", {**INFO, "alarms": []})
    loud = cluster_card("Scheduler", {**INFO, "alarms": [alarm]})
    assert "alarms" not in quiet
    assert "worker a cannot write &lt;objects&gt;<div>make room</div>" in loud
    assert "and 3 more" in alarm_list([alarm] * 11)
