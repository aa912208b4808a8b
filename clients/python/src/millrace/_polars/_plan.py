"""Plans of Polars as graphs of nodes, read from and written to Polars' serialized form.

`LazyFrame.serialize` gives a head, which names the version of the form, and MessagePack: a list of
the plan's nodes, each with its fields by name, and the data frames in it. A node that this package
does not know is kept as it is, so that Polars gets it back unchanged.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Container, Iterator
from typing import Any, cast

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._polars import _deep, _msgpack
from millrace._polars._leaf import Leaf

#: The head of a serialized plan: a word, a number of four bytes, and 64 digits that name the form.
_WORD = b"DSL_VERSION"
_HEAD = len(_WORD) + 4 + 64
_EMPTY = {"value": None, "version": 0}
#: Fields that refer to a data frame of the plan.
_FRAMES = {"DataFrameScan": "df", "Pivot": "on_columns"}
#: Fields that hold whole nodes, not their numbers.
_WHOLE = {"Union": "inputs", "HConcat": "inputs", "ExtContext": "contexts", "SinkMultiple": "inputs"}


class Node:
    """A node of a plan. Its fields hold other nodes where the serialized plan has their numbers.

    A node is not changed after it was made. `Node.input(source, schema)` makes one that stands for
    data that the process which runs the plan has.
    """

    __slots__ = ("_inputs", "_packed", "_schema", "body", "kind", "source")

    def __init__(self, kind: str, body: Any, source: Any = None) -> None:
        #: Its name in Polars: "Filter", "GroupBy", …
        self.kind = kind
        #: Its fields by name.
        self.body = body
        #: For `INPUT`: where its data comes from. For "DataFrameScan": the data frame, once it was
        #: asked for.
        self.source = source
        self._inputs: tuple[Node, ...] | None = None
        # The fields without nodes, packed. Nodes that are made from this one share them.
        self._packed: dict[str, _msgpack.Packed | None] = {}
        self._schema: pl.Schema | None = None

    @classmethod
    def input(cls, source: Any, schema: pl.Schema) -> Node:
        node = cls(INPUT, None, source)
        node._schema = schema
        return node

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The nodes that it reads."""
        if self._inputs is None:
            self._inputs = tuple(_nodes_in(self.body))
        return self._inputs

    def __getitem__(self, field: str) -> Any:
        return self.body[field]

    def changed(self, **fields: Any) -> Node:
        """Returns a node that has other values in some fields."""
        node = Node(self.kind, {**self.body, **fields})
        node._packed = {k: v for k, v in self._packed.items() if k not in fields}
        return node

    def over(self, inputs: dict[Node, Node]) -> Node:
        """Returns a node that reads others instead of those that are keys."""
        if not any(n in inputs for n in self.inputs):
            return self

        def other(node: Node) -> Node:
            return inputs.get(node, node)

        if isinstance(self.body, dict):
            fields = cast("dict[str, Any]", self.body)
            body = {k: v if self.packed(k) is not None else _mapped(v, other) for k, v in fields.items()}
            node = Node(self.kind, body, self.source)
            node._packed = self._packed
        else:
            node = Node(self.kind, _mapped(self.body, other), self.source)
        if all(_same_columns(n._schema, o._schema) for n, o in inputs.items()):
            node._schema = self._schema
        return node

    def rebuilt(self, leaves: dict[Node, Node]) -> Node:
        """Returns the plan below this node with other nodes in the places of those that are keys."""
        built = dict(leaves)
        for node in self.walk(leaves):
            if node not in built:
                built[node] = node.over({n: built[n] for n in node.inputs if built[n] is not n})
        return built[self]

    def packed(self, field: str) -> _msgpack.Packed | None:
        """Returns a field as it is in a serialized plan; None if there are nodes in it."""
        if field not in self._packed:
            value = self.body[field]
            self._packed[field] = None if any(_nodes_in(value)) else _msgpack.Packed(_msgpack.pack(value))
        return self._packed[field]

    @property
    def schema(self) -> pl.Schema:
        """The columns of its result, in order."""
        for node in self.walk() if self._schema is None else ():  # inputs first
            if node._schema is None:
                node._schema = node._own_schema()
        assert self._schema is not None
        return self._schema

    def _own_schema(self) -> pl.Schema:
        if self.kind == "DataFrameScan":
            return frame(self).schema
        inputs = {n: Node.input(None, n.schema) for n in self.inputs}
        return lazy(self.over(inputs)).collect_schema()

    def walk(self, leaves: Container[Node] = ()) -> Iterator[Node]:
        """Yields this node and all that it needs, each once, inputs before their readers. It does
        not go below leaves."""
        done: set[Node] = set()
        left: list[tuple[Node, bool]] = [(self, False)]
        while left:
            node, ready = left.pop()
            if node in done:
                continue
            if ready:
                done.add(node)
                yield node
            else:
                left.append((node, True))
                if node not in leaves:
                    left += [(n, False) for n in reversed(node.inputs)]


def _same_columns(one: pl.Schema | None, other: pl.Schema | None) -> bool:
    """Reports whether two schemas are known and equal."""
    return one is not None and (one is other or one == other)


#: Kind of a node that stands for data of the process that runs the plan.
INPUT = "millrace input"


class UnknownPlanError(ValueError):
    """Polars serialized the plan in a form that this package does not know."""


def read(lf: pl.LazyFrame) -> Node:
    """Returns the plan of a lazy frame. Equal nodes are one node.

    Raises:
        UnknownPlanError: this version of Polars writes plans in another form.
    """
    data = lf.serialize()
    if not data.startswith(_WORD):
        raise UnknownPlanError(f"a plan of Polars {pl.__version__} begins with {data[:11]!r}, not with {_WORD!r}")
    with known(), _deep.plans():
        return _root(_msgpack.unpack(data, _HEAD))


@contextlib.contextmanager
def known() -> Iterator[None]:
    """Within it, a plan that lacks a field, or has another one, is an UnknownPlanError."""
    try:
        yield
    except (KeyError, TypeError, IndexError, AttributeError, _msgpack.FormatError) as e:
        raise UnknownPlanError(f"a plan of Polars {pl.__version__} has another form: {e!r}") from e


def _root(content: Any) -> Node:
    plans = content["dsl_plans"]
    reader = _Reader(plans, content["dataframes"])
    for number in range(1, len(plans)):  # mostly, a node comes after those that it reads
        reader.node(number)
    if reader.frames != set(range(1, len(content["dataframes"]))):
        raise IndexError("a node refers to a data frame in an unknown field")
    return reader.node(content["root"]["idx"])


def write(root: Node) -> tuple[bytes, list[Node]]:
    """Returns a plan in serialized form, and its inputs in the order of their numbers."""
    writer = _Writer()
    number = writer.number(root)
    content = {"root": _reference(number), "dataframes": writer.frames, "dsl_plans": writer.plans}
    return _head() + _msgpack.pack(content), list(writer.leaves)


def lazy(root: Node) -> pl.LazyFrame:
    """Returns a plan as a lazy frame. Its inputs have numbers in the order of `Node.walk`."""
    return load(write(root)[0])


def load(data: bytes) -> pl.LazyFrame:
    return pl.LazyFrame.deserialize(io.BytesIO(data))


def optimizations(data: bytes) -> pl.QueryOptFlags:
    """Returns the optimizations that Polars may apply to a serialized plan in a task.

    Polars moves a limit into a scan of Python, and inputs of tasks are such scans. If it then
    removes the node that kept a second limit above, because nobody reads its column, it writes the
    second limit over the first: `t.head(12).with_row_index().head(40).select("x")` has 40 rows. So
    limits stay where they are if a plan may have two.
    """
    return pl.QueryOptFlags(slice_pushdown=data.count(b"Slice") < 2 or b"PythonScan" not in data)


def frame(node: Node) -> pl.DataFrame:
    """Returns the data frame that a node of kind "DataFrameScan" contains."""
    if node.source is None:
        node.source = pl.DataFrame.deserialize(io.BytesIO(b"".join(node["df"])))
    return node.source


def expression(expr: pl.Expr) -> Any:
    """Returns an expression as it is in the fields of a node."""
    (found,) = read(_ONE.select(expr))["expr"]
    return found


def schema(columns: pl.Schema) -> Any:
    """Returns the names and types of columns as they are in the fields of a node."""
    ((_, body),) = read(pl.scan_csv("/", schema=columns))["scan_type"].items()
    return body["options"]["schema"]


def _reference(number: int) -> dict[str, int]:
    return {"idx": number, "version": 1}


class _Writer:
    """Writes the nodes of a plan as Polars serializes them."""

    def __init__(self) -> None:
        self.plans: list[Any] = [_EMPTY]
        self.frames: list[Any] = [_EMPTY]
        #: The inputs and their numbers.
        self.leaves: dict[Node, int] = {}
        self._numbers: dict[Node, int] = {}
        # Numbers of data frames by the identity of their content, which nodes share.
        self._frames: dict[int, int] = {}

    def number(self, node: Node) -> int:
        """Returns the number of a node, which is written before if it was not."""
        if node not in self._numbers:
            value = self._value(node)
            self._numbers[node] = len(self.plans)
            self.plans.append({"value": value, "version": 1})
        return self._numbers[node]

    def _value(self, node: Node) -> Any:
        if node.kind == INPUT:
            return _leaf(self.leaves.setdefault(node, len(self.leaves)), node.schema)
        body = node.body
        if not isinstance(body, dict):
            value = _mapped(body, self._referred)
            return node.kind if value is None else {node.kind: value}
        return {node.kind: {k: self._field(node, k, v) for k, v in cast("dict[str, Any]", body).items()}}

    def _field(self, node: Node, name: str, value: Any) -> Any:
        if name == _WHOLE.get(node.kind):
            return [self._value(n) for n in value]
        if name == _FRAMES.get(node.kind):
            return _reference(self._frame(value))
        return node.packed(name) or _mapped(value, self._referred)

    def _referred(self, node: Node) -> dict[str, int]:
        return _reference(self.number(node))

    def _frame(self, content: Any) -> int:
        if id(content) not in self._frames:
            self._frames[id(content)] = len(self.frames)
            self.frames.append({"value": content, "version": 1})
        return self._frames[id(content)]


class _Reader:
    """Makes the nodes of a serialized plan."""

    def __init__(self, plans: list[Any], frames: list[Any]) -> None:
        self._plans = plans
        self._contents = [f["value"] for f in frames]
        #: Numbers of the data frames that nodes refer to.
        self.frames: set[int] = set()
        self._nodes: dict[int, Node | None] = {}
        #: Nodes by their content, and the number of each in it.
        self._same: dict[bytes, Node] = {}
        self._ids: dict[Node, int] = {}

    def node(self, number: int) -> Node:
        if number not in self._nodes:
            self._nodes[number] = None
            self._nodes[number] = self._made(self._plans[number]["value"])
        found = self._nodes[number]
        if found is None:
            raise IndexError(f"node {number} refers to itself")
        return found

    def _made(self, value: Any) -> Node:
        if not isinstance(value, dict):
            return self._one(Node(value, None))
        ((kind, body),) = cast("dict[str, Any]", value).items()
        if not isinstance(body, dict):
            return self._one(Node(kind, self._resolved(body)))
        fields = cast("dict[Any, Any]", body)
        whole, frame = _WHOLE.get(kind), _FRAMES.get(kind)
        made: dict[Any, Any] = {}
        for name, field in fields.items():
            if name == frame:
                made[name] = self._frame(field["idx"])
            else:
                made[name] = [self._made(n) for n in field] if name == whole else self._resolved(field)
        return self._one(Node(kind, made))

    def _frame(self, number: int) -> Any:
        """Returns the content of a data frame. Equal ones are one."""
        self.frames.add(number)
        return self._contents[self._contents.index(self._contents[number])]

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, dict):
            fields = cast("dict[Any, Any]", value)
            if fields.keys() == {"idx", "version"} and all(type(v) is int for v in fields.values()):
                return self.node(fields["idx"])
            return {k: self._resolved(v) for k, v in fields.items()}
        if isinstance(value, list):
            return [self._resolved(v) for v in cast("list[Any]", value)]
        return value

    def _one(self, node: Node) -> Node:
        """Returns the node that stands for all with this content."""
        content = _msgpack.pack([node.kind, self._content(node)])
        found = self._same.setdefault(content, node)
        self._ids.setdefault(found, len(self._ids))
        return found

    def _content(self, node: Node) -> Any:
        """Returns the fields of a node with numbers in place of the nodes and data frames in them."""

        def number(node: Node) -> dict[str, int]:
            return {"millrace node": self._ids[node]}

        if not isinstance(node.body, dict):
            return _mapped(node.body, number)
        frame = _FRAMES.get(node.kind)
        return {
            k: {"millrace frame": self._contents.index(v)} if k == frame else node.packed(k) or _mapped(v, number)
            for k, v in cast("dict[str, Any]", node.body).items()
        }


def _mapped(value: Any, change: Callable[[Node], Any]) -> Any:
    if isinstance(value, Node):
        return change(value)
    if isinstance(value, dict):
        return {k: _mapped(v, change) for k, v in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list):
        return [_mapped(v, change) for v in cast("list[Any]", value)]
    return value


def _nodes_in(value: Any) -> Iterator[Node]:
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, Node):
            yield each
        elif isinstance(each, dict):
            left += reversed(list(cast("dict[Any, Any]", each).values()))
        elif isinstance(each, list):
            left += reversed(cast("list[Any]", each))


_ONE = pl.LazyFrame({"x": [0]})
_heads: list[bytes] = []


def _head() -> bytes:
    """Returns the head of the plans of this version of Polars."""
    if not _heads:
        _heads.append(_ONE.serialize()[:_HEAD])
    return _heads[0]


_leaves: dict[Any, _msgpack.Packed] = {}
#: The bytes before the one node of a plan, and those behind it.
_around: list[tuple[bytes, bytes]] = []


def _leaf(number: int, schema: pl.Schema) -> _msgpack.Packed:
    """Returns the node of an input, as it is serialized."""
    key = (number, tuple(schema.items()))
    if key not in _leaves:
        if len(_leaves) > 1000:
            _leaves.clear()
        data = pl.LazyFrame._scan_python_function(dict(schema), Leaf(number)).serialize()
        if not _around:
            content = _msgpack.unpack(data, _HEAD)
            packed = _msgpack.pack(content["dsl_plans"][content["root"]["idx"]]["value"])
            before, _, behind = data.partition(packed)
            _around.append((before, behind))
        before, behind = _around[0]
        _leaves[key] = _msgpack.Packed(data[len(before) : len(data) - len(behind)])
    return _leaves[key]
