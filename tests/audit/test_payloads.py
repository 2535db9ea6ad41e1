"""What is kept of payloads: a hash always, themselves only where that is wanted, never an absolute path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.audit import get_json_path, remove_json_path, set_json_path
from holdfast.audit.payloads import Payloads
from holdfast.redaction import Redaction
from tests.audit.builders import REQUEST, complete, refused, request
from tests.conftest import Opener


async def payloads(hf: Holdfast, call_id: str = "call-1") -> tuple[Any, Any]:
    found = await hf.audit.get_tool_call(REQUEST, call_id)
    assert found is not None
    assert found[1] is not None
    return found[0].arguments_json, found[1].outcome_json


@pytest.mark.clause("P-26", "P-27", "H-P7", "C-13")
async def test_by_default_only_the_hash_is_kept(hf: Holdfast) -> None:
    await request(hf.audit, arguments_json={"a": 1, "b": [2]})
    await request(hf.audit, arguments_json='{"b": [2],   "a": 1}')
    await complete(hf.audit)

    found = await hf.audit.get_tool_call(REQUEST, "call-1")

    assert await payloads(hf) == (None, None)
    assert found is not None
    assert len(found[0].args_sha256) == len("sha256:") + 64
    await refused(request(hf.audit, "call-2", args_sha256="abc", arguments_json=None), "invalid_value")


@pytest.mark.clause("P-27", "H-P7", "C-13")
async def test_payloads_are_kept_per_call_per_tool_and_per_store(
    hf: Holdfast, another: Opener, configuration: str
) -> None:
    await request(hf.audit, persist_payloads=True)
    await complete(hf.audit, persist_payloads=True)
    some = await another(persist_payloads=["search"])
    every = await another(persist_payloads=True)
    for opened, name, tool in ((some, "s1", "search"), (some, "s2", "edit"), (every, "e1", "edit")):
        await request(opened.audit, name, tool_name=tool)
        await complete(opened.audit, name)
    await request(every.audit, "e2", persist_payloads=False)
    await complete(every.audit, "e2", persist_payloads=False)

    assert await payloads(hf) == ({"q": "x"}, [1])
    assert await payloads(some, "s1") == ({"q": "x"}, [1])
    assert await payloads(some, "s2") == (None, None)
    assert await payloads(every, "e1") == ({"q": "x"}, [1])
    assert await payloads(every, "e2") == (None, None)


@pytest.mark.clause("H-P6", "P-28")
async def test_text_must_be_json_and_is_kept_as_a_value(hf: Holdfast) -> None:
    await refused(request(hf.audit, arguments_json="{not json"), "invalid_value")

    await request(hf.audit, arguments_json='{"n": 1}', persist_payloads=True)
    await complete(hf.audit, outcome_json='"text"', persist_payloads=True)

    assert await payloads(hf) == ({"n": 1}, "text")


@pytest.mark.clause("P-29")
async def test_paths_are_kept_as_the_project_sees_them(another: Opener, tmp_path: Path) -> None:
    hf = await another(project_root=tmp_path, persist_payloads=True)
    inside = {"path": f"{tmp_path}/src/../src/a.py", "files": [f"{tmp_path}/b c.py"], "cwd": str(tmp_path)}
    outside = {"path": "/etc/passwd", "file": "/hosts", "win": "C:\\Users\\me\\x.txt", "url": "file:///home/me/y.txt"}
    words = {"command": f"cat {tmp_path}/a.py /dev/null", "route": "/help"}
    await request(hf.audit, arguments_json={**inside, **outside, **words})
    await hf.audit.record_tool_call_done(
        REQUEST, "call-1", status="failed", error_kind="io", error_msg=f"{tmp_path}/a.py: no such file"
    )
    await hf.audit.record_edit_proposed("p", diffs_json=[{"path": f"{tmp_path}/src/a.py"}])

    found = await hf.audit.get_tool_call(REQUEST, "call-1")
    proposal = await hf.audit.get_edit_proposal("p")

    assert found is not None
    assert found[1] is not None
    assert found[0].arguments_json == {
        "path": "src/a.py",
        "files": ["b c.py"],
        "cwd": ".",
        "file": "(outside)/hosts",
        "win": "(outside)/x.txt",
        "url": "(outside)/y.txt",
        "command": "cat a.py /dev/null",
        "route": "/help",
    } | {"path": "(outside)/passwd"}
    assert found[1].error_msg == "a.py: no such file"
    assert proposal is not None
    assert proposal.diffs_json == [{"path": "src/a.py"}]


@pytest.mark.clause("P-29")
@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("/project/src/./x.py", "src/x.py"),
        ("/project", "."),
        ("/projects/x.py", "(outside)/x.py"),
        ("src/x.py", "src/x.py"),
        ("/home/me/.ssh/id", "(outside)/id"),
    ],
)
def test_a_path_is_relative_or_nothing_but_a_name(given: str, kept: str) -> None:
    assert Payloads(Redaction(), project_root="/project").relative({"path": given}) == {"path": kept}


@pytest.mark.clause("P-29")
@pytest.mark.parametrize(
    ("given", "kept"),
    [
        *(("./src/../a.py", "a.py"), ("src//b.py", "src/b.py"), ("src/./b.py", "src/b.py"), (".", "."), ("./", ".")),
        *(
            ("../secret.py", "(outside)/secret.py"),
            ("a/../../b.py", "(outside)/b.py"),
            ("~/notes.md", "(outside)/notes.md"),
        ),
        *(
            ("src/a.py", "src/a.py"),
            ("a..b/.env", "a..b/.env"),
            ("https://host//x/../y", "https://host//x/../y"),
            ("", ""),
        ),
    ],
)
def test_a_crooked_path_is_made_straight(given: str, kept: str) -> None:
    assert Payloads(Redaction(), project_root="/project").relative({"path": given}) == {"path": kept}


@pytest.mark.clause("P-29")
@pytest.mark.parametrize(
    ("root", "given", "kept"),
    [
        ("/project", "see /project/a.py and /project, not /project2/b nor /mnt/project/c", None),
        ("/", "cat /etc/passwd # a/b, https://host/x", "cat /etc/passwd # a/b, https://host/x"),
    ],
)
def test_words_lose_the_project_and_nothing_else(root: str, given: str, kept: str | None) -> None:
    payloads = Payloads(Redaction(), project_root=root)

    shown = kept or "see a.py and ., not /project2/b nor /mnt/project/c"
    assert payloads.relative({"said": given}) == {"said": shown}
    assert payloads.error(given) == shown


@pytest.mark.clause("P-29")
def test_a_project_at_the_root_of_the_disk_keeps_its_paths() -> None:
    assert Payloads(Redaction(), project_root="/").relative({"path": "/src/../a.py"}) == {"path": "a.py"}


@pytest.mark.clause("P-28")
def test_parts_of_json_are_read_set_and_removed_by_path() -> None:
    value = {"a": [{"b": 1}, {"b": 2}]}

    assert get_json_path(value, ["a", 1, "b"]) == 2
    assert get_json_path(value, ["a", 7], "none") == "none"
    assert set_json_path(value, ["a", 0, "c", "d"], 3) == {"a": [{"b": 1, "c": {"d": 3}}, {"b": 2}]}
    assert set_json_path(value, ["a", 2], 3) == {"a": [{"b": 1}, {"b": 2}, 3]}
    assert remove_json_path(value, ["a", 0]) == {"a": [{"b": 2}]}
    assert remove_json_path(value, ["a", 0, "b"]) == {"a": [{}, {"b": 2}]}
    assert remove_json_path(value, ["x", "y"]) == value == {"a": [{"b": 1}, {"b": 2}]}
    with pytest.raises(ValueError, match="no place"):
        set_json_path(value, ["a", "b"], 1)
