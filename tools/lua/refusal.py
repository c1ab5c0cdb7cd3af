"""How the translator says no."""

import ast


class Refused(Exception):
    """The ledger uses a construct that has no translation. The text says what to write instead."""

    def __init__(self, node: ast.AST, problem: str) -> None:
        super().__init__(problem)
        self.node = node
        self.problem = problem

    def at(self, path: str) -> str:
        return f"{path}:{getattr(self.node, 'lineno', 0)}: {self.problem}"
