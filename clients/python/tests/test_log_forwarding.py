"""Log records of tasks that the client's loggers handle."""

from __future__ import annotations

import logging

import pytest
from conftest import PATIENCE, eventually
from millrace import AsyncClient, Client, LocalCluster


class Unknown:
    """Its objects mean nothing to the client."""

    def __repr__(self) -> str:
        return "an object"


def say(name: str, level: int, text: str) -> None:
    logging.getLogger(name).log(level, "%s of %r", text, Unknown())


def fail(name: str) -> None:
    try:
        raise ValueError("lost")
    except ValueError:
        logging.getLogger(name).exception("it failed", extra={"where": "here", "what": Unknown()})


def handlers(name: str) -> int:
    return len(logging.getLogger(name).handlers)


def test_records_are_handled_by_the_logger_of_the_same_name(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    client.forward_logging("forwarded", level=logging.WARNING)
    say_there = [("forwarded", "first"), ("other", "none"), ("forwarded.below", "second")]
    for name, text in say_there:
        client.submit(say, name, logging.WARNING, text, pure=False).result(PATIENCE)
        assert name == "other" or f"{text} of an object" in caplog.messages  # before the result
    assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records if r.name != "millrace"] == [
        ("forwarded", "WARNING", "first of an object"),
        ("forwarded.below", "WARNING", "second of an object"),
    ]
    client.submit(fail, "forwarded", pure=False).result(PATIENCE)
    eventually(lambda: "it failed" in caplog.messages)
    record = next(r for r in caplog.records if r.getMessage() == "it failed")
    assert "ValueError: lost" in (record.exc_text or "") and vars(record)["where"] == "here"

    with caplog.at_level(logging.ERROR, "forwarded"):
        for level, text in ((logging.WARNING, "too low"), (logging.ERROR, "high enough")):
            client.submit(say, "forwarded", level, text, pure=False).result(PATIENCE)
        eventually(lambda: "high enough of an object" in caplog.messages)
    assert "too low of an object" not in caplog.messages

    assert set(client.run(handlers, "forwarded").values()) == {1}
    client.unforward_logging("forwarded")
    assert set(client.run(handlers, "forwarded").values()) == {0}
    with pytest.raises(ValueError, match="logger forwarded are not forwarded"):
        client.unforward_logging("forwarded")
    with pytest.raises(ValueError, match="LOUD"):
        client.forward_logging("forwarded", level="LOUD")


async def test_forwarding_of_an_async_client(cluster: LocalCluster, caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncClient(cluster, namespace="of-logs") as client:
        await client.forward_logging("forwarded")
        await client.submit(say, "forwarded", logging.ERROR, "from afar", pure=False)
        assert "from afar of an object" in caplog.messages
        await client.unforward_logging("forwarded")
