"""The rules of the house that linters do not know, and the tools that check the others."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent

import pytest

import holdfast
from tools import clauses, sizes

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def plant(root: Path, **files: str) -> Path:
    """A small repository: `plant(root, tests__test_a="...")` writes `tests/test_a.py`."""
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    return root


def plant_clauses(root: Path, text: str) -> Path:
    (root / "docs").mkdir()
    (root / "tests").mkdir()
    (root / "docs/clauses.toml").write_text(dedent(text), encoding="utf-8")
    return root


def test_public_names_are_sorted_and_exist() -> None:
    assert list(holdfast.__all__) == sorted(holdfast.__all__)
    assert [name for name in holdfast.__all__ if not hasattr(holdfast, name)] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_every_module_says_what_lives_in_it(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_nothing_is_pickled() -> None:
    assert [path for path in SOURCES if "pickle" in path.read_text(encoding="utf-8")] == []


class TestClauses:
    CATALOGUE = """
        ["A: apples"]
        A-1 = { title = "Apples are red" }
        A-2 = { title = "Apples fall", planned = "orchard" }
        A-3 = { title = "Apples keep", planned = "cellar" }
    """

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return plant_clauses(tmp_path, self.CATALOGUE)

    def test_marks_are_found_on_functions_classes_and_modules(self, root: Path) -> None:
        plant(
            root,
            tests__test_a="""
                import pytest
                pytestmark = [pytest.mark.slow, pytest.mark.clause("A-1")]

                @pytest.mark.clause("A-2")
                class TestFall:
                    async def test_down(self): ...
                    def helper(self): ...

                @pytest.mark.clause("A-3", "A-2")
                def test_keep(): ...
            """,
            tests__deep__test_b="""
                import pytest

                @pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.clause("A-3"))])
                def test_params(x): ...
            """,
        )

        coverage = clauses.read_coverage(root)

        down, keep = (clauses.Test("tests/test_a.py", name) for name in ("test_down", "test_keep"))
        params = clauses.Test("tests/deep/test_b.py", "test_params")
        assert coverage == {"A-1": [down, keep], "A-2": [down, keep], "A-3": [params, keep]}

    def test_a_written_page_passes_the_check(self, root: Path) -> None:
        plant(root, tests__test_a='@pytest.mark.clause("A-1", "A-2")\ndef test_red(): ...')

        assert clauses.main(["--write"], root=root) == 0
        assert clauses.main(["--check"], root=root) == 0

        page = (root / "docs/clauses.md").read_text(encoding="utf-8")
        assert "3 clauses: 2 shown by 1 tests, 1 planned (cellar 1)." in page
        assert "| A-1 | Apples are red | [test_red](../tests/test_a.py) |" in page
        assert "| A-2 | Apples fall | [test_red](../tests/test_a.py); also planned: orchard |" in page
        assert "| A-3 | Apples keep | planned: cellar |" in page

    @pytest.mark.parametrize(
        ("test", "complaint"),
        [
            ("def test_red(): ...", "A-1 (Apples are red) has no test and is not planned"),
            ('@pytest.mark.clause("A-1", "Z-9")\ndef test_red(): ...', "test_red names Z-9"),
            ('@pytest.mark.clause("A-1", NAME)\ndef test_red(): ...', "test_red names NAME"),
        ],
        ids=["unshown", "unknown", "not literal"],
    )
    def test_a_broken_claim_fails_the_check(
        self, root: Path, capsys: pytest.CaptureFixture[str], test: str, complaint: str
    ) -> None:
        plant(root, tests__test_a=test)
        clauses.main(["--write"], root=root)

        assert clauses.main(["--check"], root=root) == 1
        assert complaint in capsys.readouterr().out

    def test_a_stale_page_fails_the_check(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        plant(root, tests__test_a='@pytest.mark.clause("A-1")\ndef test_red(): ...')
        clauses.main(["--write"], root=root)
        plant(root, tests__test_b='@pytest.mark.clause("A-2")\ndef test_fall(): ...')

        assert clauses.main(["--check"], root=root) == 1
        assert "docs/clauses.md is out of date" in capsys.readouterr().out


class TestSizes:
    def test_a_body_is_counted_without_its_docstring(self, tmp_path: Path) -> None:
        plant(
            tmp_path,
            src__a='''
                def two():
                    """Words
                    do not count."""
                    x = 1
                    return x

                class A:
                    async def all_words(self):
                        """Only words."""
            ''',
        )

        found = list(sizes.functions(tmp_path / "src/a.py", root=tmp_path))

        assert found == [
            sizes.Function("two", "src/a.py:2", 2),
            sizes.Function("all_words", "src/a.py:9", 0),
        ]

    def test_the_report_names_the_longest_first(self, tmp_path: Path) -> None:
        long = "def long():\n" + "    x = 1\n" * 40
        plant(tmp_path, src__a="def short():\n    return 1\n", src__b=long)

        report = sizes.report(tmp_path)

        assert "2 functions in 2 files; body lines: median 1, p90 40, p99 40" in report
        assert report.index("long  src/b.py:1") < report.index("short  src/a.py:1")
        assert report.index("    41  src/b.py") < report.index("     2  src/a.py")

    def test_the_mirror_never_breaks(self, tmp_path: Path) -> None:
        assert "0 functions in 0 files" in sizes.report(tmp_path)

        plant(tmp_path, src__a="def broken(")

        assert "0 functions in 1 files" in sizes.report(tmp_path)

    @pytest.mark.parametrize(("share", "value"), [(0.5, 2), (0.75, 3), (0.99, 4), (0.0, 1)])
    def test_a_quantile_is_a_value_that_occurs(self, share: float, value: int) -> None:
        assert sizes.quantile([1, 2, 3, 4], share) == value
