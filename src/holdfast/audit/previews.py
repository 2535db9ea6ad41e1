"""What an edit would change, for people to read before they decide. Pure: nothing here looks at a file."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from holdfast.errors import InvalidValue

MODES = {"minimal": 0, "expanded": 3, "full": 1 << 31}
"""How many unchanged lines are shown around each change."""
LINES_MIN, LINES_MAX = 10, 200
_PATHS = ("path", "file", "file_path", "filename")
_TEXTS = ("diff", "patch")


class FilePreview(msgspec.Struct, frozen=True, kw_only=True):
    """One file's part of an edit, as lines of a unified diff; `left_out` tells how many the limit took away."""

    path: str | None
    lines: list[str]
    left_out: int = 0


def preview(diffs_json: Any, mode: str = "expanded", lines: int = 0) -> list[FilePreview]:
    """The edit file by file: changed lines alone (`minimal`), with three around them (`expanded`), or all (`full`).

    Understood are unified diffs (`diff` or `patch` beside a `path`, or the text alone) and pairs of `before` and
    `after`; what is neither is shown as the JSON it is. `lines` is the most for each file, 0 for no limit.
    """
    if mode not in MODES:
        raise InvalidValue(f"mode is one of {', '.join(MODES)}; got {mode!r}")
    if lines != 0 and not LINES_MIN <= lines <= LINES_MAX:
        raise InvalidValue(f"lines is 0 for all of them, or {LINES_MIN} to {LINES_MAX}; got {lines!r}")
    return [_limited(path, told, lines) for part in _parts(diffs_json) for path, told in _told(part, mode)]


def edited_paths(diffs_json: Any) -> list[str]:
    """The files that the edit names."""
    parts = [_files(part.splitlines()) if isinstance(part, str) else [_fields(part)] for part in _parts(diffs_json)]
    return [path for part in parts for path, *_ in part if path is not None]


def _parts(diffs_json: Any) -> list[Any]:
    return diffs_json if isinstance(diffs_json, list) else [diffs_json]


def _limited(path: str | None, told: list[str], most: int) -> FilePreview:
    if not most or len(told) <= most:
        return FilePreview(path=path, lines=told)
    return FilePreview(path=path, lines=told[:most], left_out=len(told) - most)


def _told(part: Any, mode: str) -> Iterator[tuple[str | None, list[str]]]:
    if isinstance(part, str):
        for path, told in _files(part.splitlines()):
            yield path, _near(told, mode)
        return
    path, text, before, after = _fields(part)
    if text is not None:
        yield path, _near(text.splitlines(), mode)
    elif before is not None or after is not None:
        yield path, _compared((before or "").splitlines(), (after or "").splitlines(), mode)
    else:
        yield path, msgspec.json.format(msgspec.json.encode(part), indent=2).decode().splitlines()


def _fields(part: Any) -> tuple[str | None, str | None, str | None, str | None]:
    """Path, text of a diff, text before and after, where the part has them."""
    told = {name: value for name, value in part.items() if isinstance(value, str)} if isinstance(part, dict) else {}
    path = next((told[name] for name in _PATHS if name in told), None)
    text = next((told[name] for name in _TEXTS if name in told), None)
    return path, text, told.get("before"), told.get("after")


def _compared(before: Sequence[str], after: Sequence[str], mode: str) -> list[str]:
    around = min(MODES[mode], len(before) + len(after))
    made = difflib.unified_diff(before, after, n=around, lineterm="")
    # The first two lines name files, which we do by ourselves.
    return list(made)[2:]


def _files(told: Sequence[str]) -> Iterator[tuple[str | None, list[str]]]:
    """The files of a diff that may speak of several."""
    starts = [place for place in range(len(told)) if _names_old(told, place)]
    cuts = [0, *starts[1:], len(told)] if starts else [0, len(told)]
    for start, end in pairwise(cuts):
        part = list(told[start:end])
        names = [part[place + 1][4:] for place in range(len(part)) if _names_old(part, place)]
        yield (names[0].partition("\t")[0].removeprefix("b/") if names else None), part


def _names_old(told: Sequence[str], place: int) -> bool:
    return told[place].startswith("--- ") and place + 1 < len(told) and told[place + 1].startswith("+++ ")


def _near(told: Sequence[str], mode: str) -> list[str]:
    """The lines of a diff that are changes, or near one; the lines that name files and places go with the full view."""
    if mode == "full":
        return list(told)
    named = {place + more for place in range(len(told)) if _names_old(told, place) for more in (0, 1)}
    changed = [place for place, line in enumerate(told) if line[:1] in ("+", "-") and place not in named]
    around = MODES[mode]
    near = {other for place in changed for other in range(place - around, place + around + 1)} - named
    return [line for place, line in enumerate(told) if line.startswith("@@") or (place in near and _is_text(line))]


def _is_text(line: str) -> bool:
    return line[:1] in ("+", "-", " ", "")
