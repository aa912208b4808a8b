"""The table of docs/coming-from-dask.md, and names of Dask's distributed in our package."""

from __future__ import annotations

import runpy
from pathlib import Path

import millrace
import pytest
from millrace import _dask_names

ROOT = Path(__file__).parents[3]
TABLE = runpy.run_path(str(ROOT / "tools" / "coming-from-dask" / "table.py"))


def test_the_page_is_that_of_the_code() -> None:
    page = (ROOT / "docs" / "coming-from-dask.md").read_text()
    assert page == TABLE["page"](), "run: make coming-from-dask"


def test_every_name_has_a_verdict_and_a_reason() -> None:
    tables = TABLE["rows"]()
    assert len(tables["distributed"]) >= 59 and len(tables["Client"]) >= 64
    for owner, rows in tables.items():
        for name, verdict, text in rows:
            assert verdict in TABLE["VERDICTS"], (owner, name)
            assert text or verdict == "same", f"{owner}.{name} is {verdict}: say why"


def test_notes_are_about_names_that_exist() -> None:
    known = {
        name if owner == "distributed" else f"{owner}.{name}"
        for owner, rows in TABLE["rows"]().items()
        for name, *_ in rows
    }
    assert set(TABLE["NOTES"]) <= known


def test_every_name_of_distributed_can_be_imported() -> None:
    for name in _dask_names.NAMES:
        assert getattr(millrace, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'SpecialCluster'"):
        millrace.SpecialCluster  # noqa: B018


def test_absent_names_refuse_their_use() -> None:
    from millrace import SpecCluster, SSHCluster

    with pytest.raises(NotImplementedError, match=r"millrace\.SSHCluster: .*millrace scheduler"):
        SSHCluster(["a", "b"])

    class Own(SpecCluster):
        pass

    with pytest.raises(NotImplementedError, match="`millrace worker`"):
        Own()
    with pytest.raises(NotImplementedError, match="SSHCluster"):
        SSHCluster.from_name  # noqa: B018
