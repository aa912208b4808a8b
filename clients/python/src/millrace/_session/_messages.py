"""The messages of a submission."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Sequence

from millrace._pb.millrace.v1 import submission_pb2, task_pb2
from millrace._task_states._state import Function, OpKey, Spec

#: Most tasks and bytes of one request; a larger submission is streamed in chunks.
BATCH_TASKS, BATCH_BYTES = 50_000, 16 << 20
#: Most functions of one request.
BATCH_FUNCTIONS = 5_000


def submission(
    specs: Sequence[Spec],
    *,
    client_id: int,
    graph: int,
    known: Collection[bytes],
    instances: Iterable[submission_pb2.TemplateInstances] = (),
) -> tuple[list[submission_pb2.SubmitRequest], dict[bytes, Function]]:
    """Returns the chunks of a submission, and the functions that its tasks call, by digest.

    Args:
        specs: the tasks.
        client_id: the lease that holds them.
        graph: the graph that they join; 0: a new one.
        known: digests of the functions that the scheduler has; the others are sent along.
        instances: instances of templates.
    """
    ops: dict[OpKey, int] = {}
    options: dict[bytes, int] = {}
    chunks: list[submission_pb2.SubmitRequest] = []
    chunk = submission_pb2.SubmitRequest()
    chunk.header.client_id, chunk.header.request_id = client_id, uuid.uuid4().hex
    chunk.header.graph_id = graph
    size = count = 0
    functions: dict[bytes, Function] = {}
    for spec in specs:
        weight = len(spec.arguments) + len(spec.key) + sum(map(len, spec.inputs)) + 12 * len(spec.items) + 16
        digest = spec.op[2]
        if digest and digest not in functions:
            assert spec.function is not None
            functions[digest] = spec.function
            if digest not in known:
                payload, language = spec.function
                if size + len(payload) > BATCH_BYTES or len(chunk.functions) == BATCH_FUNCTIONS:
                    chunks.append(chunk)
                    chunk, size, count = submission_pb2.SubmitRequest(), 0, 0
                chunk.functions.add(hash=digest, payload=payload, language=language)
                size += len(payload)
        if count == BATCH_TASKS or (size and size + weight > BATCH_BYTES):
            chunks.append(chunk)
            chunk, size, count = submission_pb2.SubmitRequest(), 0, 0
        op = ops.get(spec.op)
        if op is None:
            op = ops[spec.op] = len(ops)
            kind, name, digest = spec.op
            chunk.ops.add(kind=kind, name=name, function=digest)  # pyright: ignore[reportArgumentType]
        rules = 0
        if spec.options:
            rules = options.get(spec.options, 0)
            if not rules:
                rules = options[spec.options] = len(options) + 1
                chunk.options.append(task_pb2.TaskOptions.FromString(spec.options))
        task = chunk.tasks.add(
            key=spec.key,
            op_index=op,
            inputs=spec.inputs,
            packed_arguments=spec.arguments,
            options_index=rules,
            hold=spec.state is not None,
        )
        for index, item, length in spec.items:
            task.items.add(input=index, item=item, count=length)
        size += weight
        count += 1
    for message in instances:
        weight = message.ByteSize()
        if size and size + weight > BATCH_BYTES:
            chunks.append(chunk)
            chunk, size = submission_pb2.SubmitRequest(), 0
        chunk.template_instances.append(message)
        size += weight
    chunks.append(chunk)
    return chunks, functions


def defining(
    chunks: Sequence[submission_pb2.SubmitRequest], templates: Iterable[bytes]
) -> list[submission_pb2.SubmitRequest]:
    """Returns the chunks of a submission that has these serialised templates before all others."""
    first = submission_pb2.SubmitRequest()
    first.header.CopyFrom(chunks[0].header)
    made = [first]
    size = 0
    for packed in templates:
        if size and size + len(packed) > BATCH_BYTES:
            made.append(submission_pb2.SubmitRequest())
            size = 0
        made[-1].packed_templates.append(packed)
        size += len(packed)
    chunks[0].ClearField("header")
    return [*made, *chunks]


def carrying(functions: Iterable[tuple[bytes, bytes, str]]) -> list[submission_pb2.SubmitRequest]:
    """Returns chunks of a submission that carry functions."""
    chunks: list[submission_pb2.SubmitRequest] = []
    size = 0
    for digest, payload, language in functions:
        if not chunks or size + len(payload) > BATCH_BYTES or len(chunks[-1].functions) == BATCH_FUNCTIONS:
            chunks.append(submission_pb2.SubmitRequest())
            size = 0
        chunks[-1].functions.add(hash=digest, payload=payload, language=language)
        size += len(payload)
    return chunks
