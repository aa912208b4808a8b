"""The card of a cluster, without a cluster."""

from __future__ import annotations

from typing import Any

from millrace._cluster._cluster_html import alarm_list, cluster_card


def test_a_card_shows_alarms_with_their_remedies() -> None:
    alarm = {"severity": "critical", "text": "worker a cannot write <objects>", "remedy": "make room"}
    info: dict[str, Any] = {
        "address": "a:1",
        "http": "",
        "n_workers": 0,
        "total_threads": 0,
        "total_memory": 0,
        "workers": {},
    }
    quiet = cluster_card("Scheduler", {**info, "alarms": []})
    loud = cluster_card("Scheduler", {**info, "alarms": [alarm]})
    assert "alarms" not in quiet
    assert "worker a cannot write &lt;objects&gt;<div>make room</div>" in loud
    assert "and 3 more" in alarm_list([alarm] * 11)
