"""What is translated: the functions of the ledger, and those of the model that rules call."""

import ast
import inspect
import io
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

LEDGER = "holdfast.engines.ledger"
MODULES = (
    "holdfast.model.states",
    "holdfast.model.lifetimes",
    "holdfast.model.history",
    "holdfast.model.records",
    "holdfast.model.job",
    *(
        f"{LEDGER}.{name}"
        for name in (
            "step", "lanes", "pools", "ends", "parents", "enqueue", "claim", "settle", "leases", "operate", "scopes",
            "prune", "reading",
        )
    ),
)  # fmt: skip
"""In this order they stand in rules.lua."""

LEFT_OUT = frozenset({"states.legal", "history.pack", "history.unpack", "reading.audit"})
"""By hand or not in Lua: step.lua checks transitions, the state packs records, and the client audits in pages."""
BY_HAND = frozenset({"Step"})
"""Classes whose methods step.lua has."""
IN_RUNTIME = {"PoolRecord.lane_of"}
"""Methods that the translator replaces by a function of runtime.lua."""


@dataclass(frozen=True)
class Function:
    """One function or method to translate."""

    name: str
    """The key in the table `R`: a function's own name, `Class_method` for methods."""
    node: ast.FunctionDef
    module: ModuleType
    file: str
    """The path below `holdfast/`."""
    owner: type | None
    comments: Mapping[int, str]

    @property
    def is_property(self) -> bool:
        return any(isinstance(one, ast.Name) and one.id == "property" for one in self.node.decorator_list)

    @property
    def title(self) -> str:
        return self.node.name if self.owner is None else f"{self.owner.__name__}.{self.node.name}"


def find_functions(texts: Mapping[str, str] | None = None) -> list[Function]:
    """All functions to translate. `texts` has the source of modules that is not the one on the disk."""
    found = []
    for name in MODULES:
        module = import_module(name)
        path = Path(inspect.getfile(module))
        text = (texts or {}).get(name) or path.read_text(encoding="utf-8")
        file = "/".join(path.parts[path.parts.index("holdfast") + 1 :])
        found += functions_of(module, file, text)
    return found


def functions_of(module: ModuleType, file: str, text: str) -> list[Function]:
    """The functions of one module, and the methods of its classes."""
    comments = _comments(text)
    found = []
    short = module.__name__.rpartition(".")[2]
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and f"{short}.{node.name}" not in LEFT_OUT:
            found.append(Function(node.name, node, module, file, None, comments))
        elif isinstance(node, ast.ClassDef) and node.name not in BY_HAND:
            owner: Any = getattr(module, node.name)
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and f"{node.name}.{method.name}" not in IN_RUNTIME:
                    name = f"{node.name}_{method.name}"
                    found.append(Function(name, method, module, file, owner, comments))
    return found


def _comments(text: str) -> dict[int, str]:
    """Comments by line, without those that speak to tools."""
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comment = token.string.lstrip("# ").split("# type:")[0].split("# noqa")[0].strip()
            if comment and not comment.startswith(("type:", "noqa", "fmt:")):
                found[token.start[0]] = comment
    return found
