"""The span that a program is in, if it uses OpenTelemetry."""

from __future__ import annotations

import sys
from typing import TypeAlias

#: Metadata of a call that names a span: the headers of W3C Trace Context. Empty: there is no span.
Trace: TypeAlias = "tuple[tuple[str, str], ...]"


def current() -> Trace:
    """Returns the span that the caller is in. Without the package `opentelemetry`, or before the
    program has imported it, there is none."""
    api = sys.modules.get("opentelemetry.trace")
    # NB: another thread may be importing the module.
    span_of = getattr(api, "get_current_span", None)
    if span_of is None:
        return ()
    span = span_of().get_span_context()
    if not span.is_valid:
        return ()
    parent = ("traceparent", f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags & 0xFF:02x}")
    state = span.trace_state.to_header()
    return (parent, ("tracestate", state)) if state else (parent,)
