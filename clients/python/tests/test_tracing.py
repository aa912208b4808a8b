"""Spans of OpenTelemetry: the graphs of a client are traced below the spans of the program."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from conftest import PATIENCE
from millrace import Client, LocalCluster
from millrace._session import _tracing
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

TRACER = TracerProvider(shutdown_on_exit=False).get_tracer("test")
UNSAMPLED = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False).get_tracer("test")


def inc(x: int) -> int:
    return x + 1


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """A server that takes spans."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.changed = threading.Condition()
        self._server = grpc.server(ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.url = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def Export(self, request: Any, context: Any) -> Any:
        with self.changed:
            self.spans += [s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]
            self.changed.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def below(self, parent: SpanContext, count: int) -> list[Any]:
        """Waits for spans whose parent is a span of the program."""

        def found() -> list[Any]:
            key = parent.span_id.to_bytes(8, "big")
            return [s for s in self.spans if s.parent_span_id == key]

        with self.changed:
            assert self.changed.wait_for(lambda: len(found()) >= count, PATIENCE), self.spans
            return found()

    def stop(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.stop()


def test_graphs_are_traced_below_the_spans_of_the_program(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("MILLRACE_OTLP_SAMPLE", "0")
    with LocalCluster(1, memory_limit="256MiB", device="host") as cluster, Client(cluster) as client:
        with TRACER.start_as_current_span("one") as one:
            first = client.submit(inc, 1, pure=False)
            with TRACER.start_as_current_span("two") as two:
                second = client.submit(inc, first, pure=False)
            third = client.submit(inc, second, pure=False)
        with UNSAMPLED.start_as_current_span("unsampled"):
            fourth = client.submit(inc, third, pure=False)
        assert client.submit(inc, fourth, pure=False).result(PATIENCE) == 6
        assert len(client.session.graphs) == 4
        (graph,) = collector.below(one.get_span_context(), 1)
        (inner,) = collector.below(two.get_span_context(), 1)
    assert graph.trace_id == inner.trace_id == one.get_span_context().trace_id.to_bytes(16, "big")
    assert graph.name == inner.name == "graph"
    tasks = [s for s in collector.spans if s.parent_span_id == graph.span_id]
    assert len(tasks) == 2
    assert {s.name for s in tasks} == {"inc"}
    assert [s.name for s in collector.spans if s.parent_span_id == inner.span_id] == ["inc"]
    assert {s.trace_id for s in collector.spans} == {graph.trace_id}


def test_a_graph_that_the_scheduler_has_forgotten_is_replaced(client: Client) -> None:
    assert client.submit(inc, 1, pure=False).result(PATIENCE) == 2
    client.session._sender._graphs[()] = 1 << 40
    assert client.submit(inc, 2, pure=False).result(PATIENCE) == 3
    assert client.session.graphs != [1 << 40]


def test_the_headers_name_the_current_span(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _tracing.current() == ()
    state = TraceState([("vendor", "x")])
    span = SpanContext(0xABC, 0x1F, is_remote=False, trace_flags=TraceFlags(1), trace_state=state)
    with trace.use_span(NonRecordingSpan(span)):
        assert _tracing.current() == (("traceparent", f"00-{0xABC:032x}-{0x1F:016x}-01"), ("tracestate", "vendor=x"))
        monkeypatch.delitem(sys.modules, "opentelemetry.trace")
        assert _tracing.current() == ()
