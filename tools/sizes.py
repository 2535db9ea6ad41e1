"""A mirror: how long functions and files are. It judges nothing and never fails.

The best of the field have function bodies with a median of 5 to 7 lines and a p99 of 60, and files under 800.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Function:
    """A function and the lines of its body, docstring left out."""

    name: str
    where: str
    lines: int


def functions(path: Path, *, root: Path) -> Iterator[Function]:
    """Every function of a file, methods and nested ones included; none if the file does not parse."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Function(node.name, f"{path.relative_to(root)}:{node.lineno}", body_lines(node))


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement to the last; a function that is all docstring has none."""
    statements = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    if not statements:
        return 0
    return (statements[-1].end_lineno or statements[-1].lineno) - statements[0].lineno + 1


def quantile(ascending: Sequence[int], share: float) -> int:
    """The smallest value that at least this share of all values does not exceed."""
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)] if ascending else 0


def report(root: Path) -> str:
    """The size report of `src/` under this root."""
    paths = sorted((root / "src").rglob("*.py"))
    found = [function for path in paths for function in functions(path, root=root)]
    lengths = sorted(function.lines for function in found)
    longest = sorted(found, key=lambda function: -function.lines)[:10]
    files = [(len(path.read_text(encoding="utf-8").splitlines()), path.relative_to(root)) for path in paths]
    p50, p90, p99 = (quantile(lengths, share) for share in (0.5, 0.9, 0.99))
    return "\n".join(
        [
            f"{len(found)} functions in {len(paths)} files; body lines: median {p50}, p90 {p90}, p99 {p99}",
            "longest functions",
            *(f"{function.lines:6}  {function.name}  {function.where}" for function in longest),
            "longest files",
            *(f"{lines:6}  {path}" for lines, path in sorted(files, key=lambda file: -file[0])[:5]),
        ]
    )


if __name__ == "__main__":
    print(report(ROOT))
