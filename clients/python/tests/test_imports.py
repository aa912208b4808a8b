"""The import order of this package's modules: no circles, and imports only at the top."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "millrace"
#: Modules that only pass on names of others. They are imported by name only, so that they are part
#: of no circle: `millrace` loads its names at their first use.
FACADES = frozenset({"millrace", "millrace.executor"})
#: Imports of our own modules inside of functions, with the reason for each. It is empty: they hide
#: circles.
LATE: dict[tuple[str, str], str] = {
    ("millrace.polars", f"millrace._polars.{name}"): "An unknown version of Polars may lack types that they name."
    for name in ("_query", "_stages")
}


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources() -> dict[str, str]:
    return {name_of(p): p.read_text() for p in PACKAGE.rglob("*.py") if "_pb" not in p.parts}


def imported(node: ast.AST, modules: set[str]) -> Iterator[str]:
    """Yields our own modules that an import statement names."""
    if isinstance(node, ast.Import):
        yield from (a.name for a in node.names if a.name in modules)
    elif isinstance(node, ast.ImportFrom):
        assert node.module is not None and not node.level, "imports of this package are absolute"
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            if inner in modules:
                yield inner
            elif node.module in modules:
                yield node.module


def graph(code: dict[str, str]) -> dict[str, set[str]]:
    """Returns the imports of each module, also those for type checkers."""
    modules = set(code)
    return {
        name: {m for node in ast.walk(ast.parse(text)) for m in imported(node, modules) if m not in FACADES}
        for name, text in code.items()
        if name not in FACADES
    }


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Returns a circle for each module that is on one."""
    found: list[list[str]] = []
    for start in sorted(imports):
        before: dict[str, str] = {}
        left = [start]
        while left:
            at = left.pop()
            for to in imports[at]:
                if to not in before:
                    before[to] = at
                    left.append(to)
        if start in before:
            way = [start, before[start]]
            while way[-1] != start:
                way.append(before[way[-1]])
            found.append(way[::-1])
    return found


def late(code: dict[str, str]) -> list[tuple[str, str]]:
    """Returns the imports of our own modules inside of functions, as module and imported module."""
    modules = set(code)
    functions = (
        (name, node)
        for name, text in code.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    )
    return sorted({(name, m) for name, f in functions for node in ast.walk(f) for m in imported(node, modules)})


@pytest.mark.one_python
def test_no_module_imports_itself_through_others() -> None:
    imports = graph(sources())
    assert {"millrace.client", "millrace.future", "millrace._session._session", "millrace.executor._process"} <= set(
        imports
    )
    assert [" -> ".join(c) for c in circles(imports)] == []


@pytest.mark.one_python
def test_no_function_imports_our_own_modules() -> None:
    assert [pair for pair in late(sources()) if pair not in LATE] == []


#: The packages and top modules from the bottom up: each imports only what stands before it.
LAYERS = (
    *("_mode", "_check", "_import_hooks", "_accepted", "_program", "_status", "_dask_names", "ops", "plugins"),
    *("_values", "_frames", "errors", "_connection", "_task_states", "_transfer", "_session", "future"),
    *(
        "_cluster",
        "_dask_functions",
        "_tasks",
        "templates",
        "_dask",
        "executor",
        "_calls",
        "_actors",
        "_client",
        "_local",
        "cluster",
        "servers",
    ),
    *("client_executor", "client", "_shared", "_in_tasks", "_performance_report"),
    *("joblib_backend", "as_distributed", "_polars", "polars"),
)


@pytest.mark.one_python
def test_the_layers() -> None:
    """The session knows no futures, and futures know no client."""
    wrong: list[str] = []
    for name, imports in graph(sources()).items():
        own = LAYERS.index(name.split(".")[1])
        wrong += [f"{name} imports {m}" for m in imports if LAYERS.index(m.split(".")[1]) > own]
    assert wrong == []


def test_executors_need_no_client() -> None:
    imports = graph(sources())
    found: set[str] = set()
    left = [name for name in imports if name.startswith("millrace.executor.")]
    while left:
        new = imports[left.pop()] - found
        found |= new
        left += new
    assert "millrace.executor._process" in imports
    assert not found & {"millrace._session._session", "millrace.future", "millrace.client"}


@pytest.mark.parametrize(
    "text",
    [
        "from millrace.b import x",
        "from millrace import b",
        "if TYPE_CHECKING:\n    import millrace.b",
        "def f():\n    import millrace.b",
    ],
)
def test_circles_are_found(text: str) -> None:
    code = {
        "millrace": "",
        "millrace.a": text,
        "millrace.b": "from millrace.a import y",
        "millrace.c": "import millrace.a",
    }
    assert circles(graph(code)) == [
        ["millrace.a", "millrace.b", "millrace.a"],
        ["millrace.b", "millrace.a", "millrace.b"],
    ]
    assert late(code) == ([("millrace.a", "millrace.b")] if "def" in text else [])
