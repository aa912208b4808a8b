"""Links to the scheduler's HTTP port."""

from __future__ import annotations

import dask
import pytest
from millrace import Client
from millrace._cluster._dashboard import link


def test_links() -> None:
    assert link("") == ""
    with dask.config.set({"distributed.dashboard.link": None}):
        assert link("127.0.0.1:8787") == "http://127.0.0.1:8787/"
    with dask.config.set({"distributed.dashboard.link": "{scheme}://{host}:{port}/status"}):
        assert link("127.0.0.1:8787") == "http://127.0.0.1:8787/status"
        assert link("[::1]:8787") == "http://[::1]:8787/status"


def test_links_behind_a_proxy(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/ann/")
    with dask.config.set({"distributed.dashboard.link": "{JUPYTERHUB_SERVICE_PREFIX}proxy/{port}/status"}):
        assert link("127.0.0.1:8787") == "/user/ann/proxy/8787/status"
        assert client.dashboard_link == client.cluster.dashboard_link
        assert client.dashboard_link.startswith("/user/ann/proxy/") and client.dashboard_link in client._repr_html_()


@pytest.mark.parametrize("template", ["{NOTHING_OF_THIS_NAME}/x", "{", "{}", "{host.x}"])
def test_a_setting_that_makes_no_link(template: str) -> None:
    with (
        dask.config.set({"distributed.dashboard.link": template}),
        pytest.warns(UserWarning, match=r"distributed\.dashboard\.link"),
    ):
        assert link("127.0.0.1:8787") == "http://127.0.0.1:8787/"
