"""What an edit would change, as people read it before they decide."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import HoldfastError
from holdfast.audit import FilePreview, edited_paths, preview

BEFORE = "\n".join(f"line {number}" for number in range(30))
AFTER = BEFORE.replace("line 10", "line ten").replace("line 20", "line twenty")
PAIR = {"path": "src/a.py", "before": BEFORE, "after": AFTER}
UNIFIED = """\
diff --git a/x.py b/x.py
index 1..2 100644
--- a/x.py
+++ b/x.py
@@ -1,9 +1,9 @@
 a
 b
 c
 d
-e
+E
 f
 g
 h
 i
--- a/y.py
+++ b/y.py
@@ -1 +1 @@
--- q
+w
"""


@pytest.mark.clause("PB-7")
def test_a_pair_of_texts_is_shown_as_its_changes() -> None:
    (minimal,) = preview(PAIR, "minimal")
    (expanded,) = preview([PAIR])
    (full,) = preview(PAIR, "full")

    assert minimal.lines == [
        *("@@ -11 +11 @@", "-line 10", "+line ten"),
        *("@@ -21 +21 @@", "-line 20", "+line twenty"),
    ]
    assert [line for line in expanded.lines if line.startswith(" ")] == [
        *(f" line {number}" for number in (7, 8, 9, 11, 12, 13, 17, 18, 19, 21, 22, 23)),
    ]
    assert len(full.lines) == 1 + 30 + 2
    assert {part.path for part in (minimal, expanded, full)} == {"src/a.py"}


@pytest.mark.clause("PB-7")
def test_a_unified_diff_is_cut_into_its_files() -> None:
    minimal, other = preview(UNIFIED, "minimal")
    expanded, _ = preview([UNIFIED], "expanded")
    full, _ = preview(UNIFIED, "full")

    assert (minimal.path, minimal.lines) == ("x.py", ["@@ -1,9 +1,9 @@", "-e", "+E"])
    assert (other.path, other.lines) == ("y.py", ["@@ -1 +1 @@", "--- q", "+w"])
    assert expanded.lines == ["@@ -1,9 +1,9 @@", " b", " c", " d", "-e", "+E", " f", " g", " h"]
    assert full.lines == UNIFIED.splitlines()[:15]


@pytest.mark.clause("PB-7")
@pytest.mark.parametrize(
    ("diffs", "shown"),
    [
        ([{"path": "a.py", "diff": "+1"}], [FilePreview(path="a.py", lines=["+1"])]),
        ([{"file": "a.py", "patch": "-1\n 2"}], [FilePreview(path="a.py", lines=["-1", " 2"])]),
        ({"path": "new.py", "after": "x"}, [FilePreview(path="new.py", lines=["@@ -0,0 +1 @@", "+x"])]),
        ({"path": "a.py"}, [FilePreview(path="a.py", lines=["{", '  "path": "a.py"', "}"])]),
        ([7], [FilePreview(path=None, lines=["7"])]),
        (None, [FilePreview(path=None, lines=["null"])]),
        ([], []),
        ("", [FilePreview(path=None, lines=[])]),
    ],
)
def test_whatever_was_proposed_can_be_shown(diffs: Any, shown: list[FilePreview]) -> None:
    assert preview(diffs) == shown
    assert edited_paths(diffs) == [file.path for file in shown if file.path]


@pytest.mark.clause("PB-7")
def test_a_limit_says_how_much_it_took_away() -> None:
    (cut,) = preview(PAIR, "full", 10)
    (whole,) = preview(PAIR, "full", 200)

    assert (len(cut.lines), cut.left_out) == (10, 23)
    assert (len(whole.lines), whole.left_out) == (33, 0)
    assert preview(PAIR, "full", 0) == [whole]


@pytest.mark.clause("PB-7")
@pytest.mark.parametrize(("mode", "lines"), [("tiny", 0), ("full", 9), ("full", 201), ("full", -1)])
def test_other_views_are_refused(mode: str, lines: int) -> None:
    with pytest.raises(HoldfastError):
        preview(PAIR, mode, lines)
