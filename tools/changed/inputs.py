"""The input of each Python test file: the files of the repository on which its outcome depends.

They are found by reading, not by running. A test file depends on itself, on pytest's settings, on
the modules that it imports, also in the programs that it contains as text, on all that those
import, and on the files that it names by a path. One that can start a cluster also depends on
bin/millrace and on the executor. Imports that only the type checker sees do not count.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

TESTS = Path("clients/python/tests")
SOURCES = Path("clients/python/src")
BINARY = Path("bin/millrace")
#: All tests depend on these, and on the version of Python.
SETTINGS = (Path("clients/python/pyproject.toml"), Path("tools/python-dev.lock"), TESTS / "conftest.py")
#: The module that finds bin/millrace: only tests that reach it start processes of a cluster.
STARTS_CLUSTERS = "millrace._local._local_process"
#: The part of the package that a cluster runs, whatever the test imports.
EXECUTOR = "millrace.executor"
#: Files in which programs are looked for.
TEXT = frozenset({".py", ".md", ".ipynb"})

_FROM = re.compile(r"\bfrom\s+(millrace[\w.]*)\s+import\s+(\([^)]*\)|[^\n;\"'\\]*)")
_DOTTED = re.compile(r"\bmillrace(?:\.[A-Za-z_]\w*)+")


def modules(root: Path) -> dict[str, Path]:
    """Returns the files of the package's modules by their names, relative to the root."""
    found: dict[str, Path] = {}
    for path in (root / SOURCES).rglob("*.py"):
        parts = path.relative_to(root / SOURCES).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.relative_to(root)
    return found


def _runs(node: ast.AST) -> Iterator[ast.AST]:
    """Walks a tree without the blocks `if TYPE_CHECKING`."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"):
            yield from _runs(child)


def _name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class Inputs:
    """Finds the inputs of test files. Each file is read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._modules = modules(root)
        self._homes = self._read_homes()
        self._trees: dict[Path, ast.Module] = {}
        self._next: dict[Path, set[Path]] = {}
        self._hashes: dict[Path, str] = {}

    def test_files(self) -> list[Path]:
        """Returns the files of tests, without those that conftest.py names in collect_ignore."""
        ignored = {
            text.value
            for node in self._tree(SETTINGS[2]).body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "collect_ignore"
            for text in ast.walk(node.value)
            if isinstance(text, ast.Constant)
        }
        found = (p.relative_to(self.root) for p in (self.root / TESTS).glob("test_*.py"))
        return sorted(p for p in found if p.name not in ignored)

    def distances(self, test: Path) -> dict[Path, int]:
        """Returns the files of a test's input. The value is the number of imports between the test
        and the file: 0 for the test itself, 1 for what it imports or names."""
        found = {test: 0}
        left = [test]
        for at in left:
            for to in self._neighbours(at):
                if to not in found:
                    found[to] = found[at] + 1
                    left.append(to)
        far = max(found.values())
        for path in SETTINGS:
            found.setdefault(path, far)
        return found

    def digests(self, test: Path) -> dict[str, str]:
        """Returns the hash of each file of a test's input by its path, and the version of Python."""
        found = {str(path): self._digest(path) for path in self.distances(test)}
        found["python"] = "{}.{}.{}".format(*sys.version_info[:3])
        return found

    def _digest(self, path: Path) -> str:
        if path not in self._hashes:
            full = self.root / path
            made = hashlib.sha256()
            files = [full] if not full.is_dir() else sorted(p for p in full.rglob("*") if "__pycache__" not in p.parts)
            for file in files:
                made.update(str(file.relative_to(self.root)).encode() + b"\0")
                if file.is_file():
                    made.update(file.read_bytes())
            self._hashes[path] = made.hexdigest()[:20]
        return self._hashes[path]

    def _neighbours(self, path: Path) -> set[Path]:
        if path not in self._next:
            full = self.root / path
            found: set[Path] = set()
            if full.is_dir():
                found = {p.relative_to(self.root) for p in full.rglob("*") if p.suffix in TEXT and p.is_file()}
            elif path.suffix == ".py" and path.is_relative_to(SOURCES):
                found = self._of_module(path)
            elif path.suffix in TEXT:
                found = self._of_text(full.read_text(errors="replace"))
                if path.suffix == ".py" and path != SETTINGS[2]:
                    found |= self._of_script(path)
            self._next[path] = found - {path}
        return self._next[path]

    def _tree(self, path: Path) -> ast.Module:
        if path not in self._trees:
            self._trees[path] = ast.parse((self.root / path).read_text())
        return self._trees[path]

    # Modules of the package.

    def _read_homes(self) -> dict[str, str]:
        """Returns the modules of the names that `millrace` loads at their first use."""
        tree = ast.parse((self.root / SOURCES / "millrace/__init__.py").read_text())
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES":
                return {name: f"millrace.{m}" for m, names in ast.literal_eval(node.value).items() for name in names}
        raise ValueError("millrace/__init__.py has no _HOMES, so the modules of its names are unknown")

    def _name(self, dotted: str) -> set[Path]:
        """Returns the files that are read to import what a dotted name of the package stands for."""
        if dotted.startswith("millrace.") and dotted.split(".")[1] in self._homes:
            dotted = self._homes[dotted.split(".")[1]]
        elif dotted.startswith("millrace.") and ".".join(dotted.split(".")[:2]) not in self._modules:
            dotted = "millrace._dask_names"
        parts = dotted.split(".")
        prefixes = (".".join(parts[: i + 1]) for i in range(len(parts)))
        return {self._modules[p] for p in prefixes if p in self._modules}

    def _imported(self, nodes: Iterable[ast.AST]) -> set[Path]:
        found: set[Path] = set()
        for node in nodes:
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [a.name for a in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{a.name}" for a in node.names]
            elif isinstance(node, ast.Call) and _name_of(node.func) == "import_module" and node.args:
                argument = node.args[0]
                names = (
                    [argument.value] if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else []
                )
            for name in names:
                if name.split(".")[0] == "millrace":
                    found |= self._name(name)
        return found

    def _of_module(self, path: Path) -> set[Path]:
        if path == self._modules["millrace"]:
            return set()  # it loads names at their first use, and users of the names depend on them
        if "_pb" in path.parts:  # large, and its imports are plain
            return self._of_text((self.root / path).read_text())
        found = self._imported(_runs(self._tree(path)))
        if path == self._modules[STARTS_CLUSTERS]:
            found |= {BINARY, self._modules[EXECUTOR].parent}
        return found

    # Tests, and the files that they name.

    def _of_text(self, text: str) -> set[Path]:
        found: set[Path] = set()
        for module, names in _FROM.findall(text):
            for name in re.findall(r"\w+", re.sub(r"#.*|\bas\s+\w+", "", names)):
                found |= self._name(f"{module}.{name}")
        for dotted in _DOTTED.findall(text):
            found |= self._name(dotted)
        return found

    def _of_script(self, path: Path) -> set[Path]:
        nodes = list(ast.walk(self._tree(path)))
        found: set[Path] = set()
        named: set[Path] = set()
        paths = {"__file__": self.root / path}
        used = {a.arg for node in nodes if isinstance(node, ast.arguments) for a in node.args}
        for node in nodes:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                value = self._path(node.value, paths)
                if value is not None:
                    paths[node.targets[0].id] = value
        for node in nodes:
            if isinstance(node, ast.Import):
                found |= {self._beside(path, a.name) for a in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module == "conftest":
                used |= {a.name for a in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(self._beside(path, node.module))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
                if re.search(r"\w[./]\w", node.value) and len(node.value) < 200:
                    found |= {p for p in (path.parent / node.value, Path(node.value)) if (self.root / p).is_file()}
            elif isinstance(node, (ast.BinOp, ast.Name)):
                value = self._path(node, paths)
                if value is not None and value.is_relative_to(self.root):
                    named.add(value.relative_to(self.root))
        # A folder that is the way to a named file stands for that file.
        found |= {p for p in named if not any(p in other.parents for other in named)}
        if path.parent == TESTS:
            found |= self._of_fixtures(used)
        return {
            p
            for p in found
            if (self.root / p).exists() and not p.is_absolute() and ".." not in p.parts and not path.is_relative_to(p)
        }

    def _beside(self, path: Path, module: str) -> Path:
        return path.with_name(module.split(".")[0] + ".py")

    def _path(self, node: ast.expr, known: dict[str, Path]) -> Path | None:
        """Returns the path that an expression stands for, if it is made of __file__ and constants."""
        if isinstance(node, ast.Name):
            return known.get(node.id)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant):
            left = self._path(node.left, known)
            return None if left is None else left / str(node.right.value)
        if isinstance(node, ast.Call):
            if _name_of(node.func) == "Path" and len(node.args) == 1:
                return self._path(node.args[0], known)
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("resolve", "absolute"):
                return self._path(node.func.value, known)
        if isinstance(node, ast.Attribute) and node.attr == "parent":
            above = self._path(node.value, known)
            return None if above is None else above.parent
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "parents":
            above = self._path(node.value.value, known)
            if above is not None and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
                return above.parents[node.slice.value]
        return None

    def _of_fixtures(self, used: set[str]) -> set[Path]:
        """Returns what the named parts of conftest.py import, with the parts that those use."""
        tree = self._tree(SETTINGS[2])
        imports: dict[str, ast.AST] = {}
        parts: dict[str, ast.AST] = {}
        for node in tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                imports |= {
                    a.asname or a.name: ast.ImportFrom(node.module, [a])
                    if isinstance(node, ast.ImportFrom)
                    else ast.Import([a])
                    for a in node.names
                }
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                parts[node.name] = node
        found: set[Path] = set()
        left, seen = set(used), set[str]()
        while left:
            name = left.pop()
            seen.add(name)
            if name in imports:
                found |= self._imported([imports[name]])
            elif name in parts:
                body = list(ast.walk(parts[name]))
                names = {n.id for n in body if isinstance(n, ast.Name)} | {
                    n.arg for n in body if isinstance(n, ast.arg)
                }
                left |= names - seen
        return found
