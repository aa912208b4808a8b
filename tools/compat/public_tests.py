"""Tells which tests of distributed use its public interface only, and copies test files.

A test is judged by its source and that of the helpers of its file that it calls. Each rule has a
reason; the first rule that a test breaks counts. Breaches that no rule sees show themselves when
the test runs with distributed's own processes: see compare_distributed.py.

In the copies, each name that is imported from distributed comes from `fixtures.take`, so that a
file loads although a private name that one of its tests needs does not exist.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

INSIDE = "It looks into the objects of the scheduler or of a worker."
PRIVATE = "It uses private names."
UNLISTED = "It uses names that are not in distributed's public interface."
MACHINERY = "It uses test machinery that reaches into servers, connections or processes."
SCHEDULER_CODE = "It runs Python inside of the scheduler."
CONFIG = "It names settings or loggers of distributed's own parts."
SHAPE = "It needs servers of its own classes or with arguments of their own."
TLS = "It needs TLS."
SLOW = "Its authors mark it as slow or skip it."
#: Reasons that only a run tells.
PROCESSES = "It fails with distributed itself in this run, with scheduler and workers as processes."
LATE = "It does not end in time with distributed itself, on the machine of this run."
REASONS = (SLOW, TLS, PRIVATE, INSIDE, UNLISTED, MACHINERY, SCHEDULER_CODE, SHAPE, CONFIG, PROCESSES, LATE)

#: Helpers of distributed.utils_test that `fixtures` has.
HELPERS = frozenset(
    "NO_AMM async_poll_for asyncinc block_on_event captured_logger cluster dec div double gen_cluster gen_test inc "
    "lock_inc map_varying mul nodebug nodebug_setup_module nodebug_teardown_module poll_for raises_with_cause "
    "randominc slowadd slowdec slowdouble slowidentity slowinc slowsum throws varying".split()
)
#: Small helpers of distributed's other modules that say nothing about its interface.
UTILITIES = frozenset("LINUX MACOS WINDOWS open_port tmp_text wait_for time get_mp_context is_valid_xml".split())
#: Attributes of a server that a test may use.
OF_SERVERS = frozenset({"address", "worker_address", "workers", "ip", "port", "name"})
#: Attributes of clients, futures and executors without a word in distributed's documentation.
UNDOCUMENTED = frozenset(
    "futures refcount id scheduler scheduler_comm connection_pool extensions security cluster coroutines loop "
    "direct_to_workers data generation".split()
)
#: Those of as_completed and of semaphores.
UNDOCUMENTED_OF_OTHERS = frozenset({("ac", "queue"), ("sem", "refresh_callback"), ("s2", "refresh_callback")})
#: Names of the public interface, and attributes, that run Python inside of the scheduler.
IN_SCHEDULER = frozenset({"SchedulerPlugin", "run_on_scheduler", "dask_scheduler"})
#: Public names whose objects are the servers themselves.
SERVERS = frozenset({"Scheduler", "Worker", "Nanny", "SpecCluster", "rpc", "connect"})
_SHAPES = frozenset({"scheduler_kwargs", "worker_kwargs", "client_kwargs", "security"})


class File:
    """A file of distributed's tests."""

    def __init__(self, path: Path, public: Iterable[str]) -> None:
        self.path = path
        self.tree = ast.parse(path.read_text())
        self._public = frozenset(public)
        #: Names that the file imports from distributed, and their modules and names there.
        self._imported: dict[str, tuple[str, str]] = {}
        self._helpers: dict[str, ast.AST] = {}
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom) and of_distributed(node.module):
                self._imported |= {a.asname or a.name: (node.module or "", a.name) for a in node.names}
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                self._helpers[node.name] = node

    def tests(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in self.tree.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                yield node

    def excluded(self) -> dict[str, str]:
        """Returns the tests that use more than the public interface, with the reasons."""
        found = {test.name: self._judge(test) for test in self.tests()}
        return {name: reason for name, reason in found.items() if reason}

    def _judge(self, test: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
        marks = {n.attr for d in test.decorator_list for n in ast.walk(d) if isinstance(n, ast.Attribute)}
        if marks & {"slow", "skip", "xfail", "gpu"}:
            return SLOW
        nodes = [n for part in self._with_helpers(test) for n in ast.walk(part)]
        names = {n.id for n in nodes if isinstance(n, ast.Name)}
        names |= {a.arg for n in nodes if isinstance(n, ast.arguments) for a in (*n.args, *n.kwonlyargs)}
        if any(word in name.lower() for name in names for word in ("tls", "security", "get_cert")):
            return TLS
        attributes = {n.attr for n in nodes if isinstance(n, ast.Attribute)}
        imported = dict(self._imported)
        for node in nodes:  # imports inside of the test
            if isinstance(node, ast.ImportFrom) and of_distributed(node.module):
                imported |= {a.asname or a.name: (node.module or "", a.name) for a in node.names}
        theirs = {imported[name] for name in names if name in imported}
        if any(private(name) for _, name in theirs) or any(
            private(n.attr) for n in nodes if isinstance(n, ast.Attribute) and not of_self(n)
        ):
            return PRIVATE
        servers = self._servers(test)
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id in servers and node.attr not in OF_SERVERS:
                    return INSIDE
            elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
                if node.value.id in {"s", "a", "b"} & self._parameters(test) and "address" not in ast.dump(node.slice):
                    return MACHINERY
        if names & IN_SCHEDULER or attributes & IN_SCHEDULER:
            return SCHEDULER_CODE
        for module, name in theirs:
            if module == "distributed.utils_test":
                if name not in HELPERS:
                    return MACHINERY
            elif name not in self._public | UTILITIES:
                return UNLISTED
        clients = {"c", "client", "e", "c1", "c2", "c3", "c4", "cc"}
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                owner, name = node.value.id, node.attr
                if (owner in clients and name in UNDOCUMENTED) or (owner, name) in UNDOCUMENTED_OF_OTHERS:
                    return UNLISTED
        return self._judge_shape(nodes, names)

    def _judge_shape(self, nodes: list[ast.AST], names: set[str]) -> str:
        for node in nodes:
            if not isinstance(node, ast.Call):
                continue
            called = node.func.id if isinstance(node.func, ast.Name) else ""
            if called in ("gen_cluster", "cluster", "gen_test"):
                for keyword in node.keywords:
                    if keyword.arg in _SHAPES or (keyword.arg == "Worker" and ast.unparse(keyword.value) != "Nanny"):
                        return SHAPE
                    if keyword.arg == "nthreads" and any(isinstance(n, ast.Dict) for n in ast.walk(keyword.value)):
                        return SHAPE
                    if keyword.arg == "config" and ast.unparse(keyword.value) != "NO_AMM":
                        return CONFIG
        if names & SERVERS and any(
            isinstance(n, ast.Name) and n.id in SERVERS and not of_decorator(n, nodes) for n in nodes
        ):
            return SHAPE
        text = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        return CONFIG if any(t.startswith("distributed.") and " " not in t for t in text) else ""

    def _with_helpers(self, test: ast.AST) -> list[ast.AST]:
        """Returns a test and the helpers of its file that it uses, also by way of others."""
        parts, left = [test], [test]
        while left:
            names = {n.id for n in ast.walk(left.pop()) if isinstance(n, ast.Name)}
            names |= self._parameters(test)  # fixtures
            for name in names & self._helpers.keys():
                helper = self._helpers[name]
                if helper not in parts and not name.startswith("test_"):
                    parts.append(helper)
                    left.append(helper)
        return parts

    @staticmethod
    def _parameters(test: ast.AST) -> set[str]:
        if not isinstance(test, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return set()
        return {a.arg for a in (*test.args.args, *test.args.kwonlyargs)}

    @staticmethod
    def _servers(test: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
        """Returns the parameters of a `gen_cluster` test that are servers."""
        for decorator in test.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "gen_cluster":
                has_client = any(k.arg == "client" and ast.unparse(k.value) == "True" for k in decorator.keywords)
                names = [a.arg for a in test.args.args][1 if has_client else 0 :]
                return {
                    *names[:1],
                    *(n for n in names[1:] if len(n) <= 2 or n.startswith("worker")),
                    "w",
                    "worker",
                    "dask_worker",
                }
        return {"dask_worker"}

    def copy(self, to: Path) -> None:
        """Writes a copy whose names of distributed come from `fixtures.take`."""
        lines: list[ast.stmt] = []
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom) and of_distributed(node.module):
                lines += [_taking(node.module or "", a) for a in node.names]
            else:
                lines.append(node)
        future = (i for i, n in enumerate(lines) if isinstance(n, ast.ImportFrom) and n.module == "__future__")
        lines.insert(max(future, default=-1) + 1, ast.parse("import fixtures").body[0])
        to.write_text(ast.unparse(ast.Module(lines, [])))


def of_distributed(module: str | None) -> bool:
    return (module or "").partition(".")[0] == "distributed"


def private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name not in ("_", "_repr_html_", "_asdict")


def of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "os", "sys")


def of_decorator(name: ast.Name, nodes: list[ast.AST]) -> bool:
    """Returns whether a name is an argument `Worker=Nanny` of gen_cluster."""
    return any(isinstance(n, ast.keyword) and n.arg == "Worker" and n.value is name for n in nodes)


def _taking(module: str, alias: ast.alias) -> ast.stmt:
    return ast.parse(f"{alias.asname or alias.name} = fixtures.take({module!r}, {alias.name!r})").body[0]
