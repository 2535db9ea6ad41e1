"""Where a SQLite file may live: what is not fit is refused in words, before anything is written."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from pathlib import Path

import pytest

from holdfast import DatabaseError, Holdfast
from holdfast.store.sqlite_files import check_place, filesystem
from tests.contract.builders import create
from tests.contract.others import answer, open_unprivileged, process


async def refused(url: str) -> DatabaseError:
    """Why this cannot be opened."""
    with pytest.raises(DatabaseError) as caught:
        await Holdfast(url).open()
    return caught.value


@pytest.mark.clause("S-11b")
async def test_a_missing_folder_is_named_and_can_be_made_afterwards(tmp_path: Path) -> None:
    hf = Holdfast(str(tmp_path / "deep" / "holdfast.db"))

    with pytest.raises(DatabaseError, match=r"deep does not exist or cannot be reached; create it first") as caught:
        await hf.open()

    assert caught.value.code == "database_unusable"
    os.mkdir(tmp_path / "deep")
    async with hf:
        assert (await create(hf)).status == "pending"


async def test_what_is_no_database_is_left_as_it_is(tmp_path: Path) -> None:
    text = tmp_path / "letter.txt"
    write(text, "Dear database, " * 100)

    error = await refused(str(text))

    assert error.code == "database_unusable"
    assert "letter.txt cannot be opened: file is not a database" in str(error)
    assert read(text) == "Dear database, " * 100


async def test_a_folder_is_no_database(tmp_path: Path) -> None:
    error = await refused(str(tmp_path))

    assert (error.code, "is a folder; name a file in it" in str(error)) == ("database_unusable", True)


async def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "miles.db")
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE runs (distance_km)")
    connection.close()
    hf = Holdfast(path)

    with pytest.raises(DatabaseError, match="table runs already exists") as caught:
        await hf.open()
    await hf.close()

    assert caught.value.code == "database_unusable"


def test_files_that_may_not_be_written_are_refused() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        for name, mode in (("read-only.db", 0o444), ("secret.db", 0o000)):
            write(Path(folder) / name, "")
            os.chmod(Path(folder) / name, mode)
        os.mkdir(Path(folder) / "private", 0o000)
        places = [f"{folder}/{name}" for name in ("read-only.db", "secret.db", "new.db", "private/new.db")]
        if os.getuid() != 0:
            os.chmod(folder, 0o555)

        with process(open_unprivileged, *places) as (_, pipe):
            said = [answer(pipe) for _ in places]

        os.chmod(folder, 0o755)
    assert [words.split(":")[0] for words in said] == ["database_unusable"] * 4
    assert all("no permission" in words or "cannot be reached" in words for words in said)


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/srv/data", "ext4"),
        ("/srv/share", "nfs4"),
        ("/srv/share/deep/er", "nfs4"),
        ("/srv/shared", "ext4"),
        ("/srv/share/local", "xfs"),
        ("/mnt/my disk", "cifs"),
        ("/mnt/dräger", "fuse.sshfs"),
        ("/proc", "proc"),
    ],
)
def test_the_innermost_mount_tells_the_filesystem(tmp_path: Path, folder: str, kind: str) -> None:
    assert filesystem(Path(folder), mounts(tmp_path)) == kind


@pytest.mark.clause("S-11b")
def test_a_network_filesystem_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    write(table, f"/dev/vda / ext4 rw 0 0\nnas:/x {tmp_path} nfs4 rw 0 0\n")

    with pytest.raises(DatabaseError, match=r"network filesystem \(nfs4\).*local disk, or Postgres") as caught:
        check_place(tmp_path / "holdfast.db", table)

    assert caught.value.code == "network_filesystem"


def test_where_the_kernel_does_not_say_nothing_is_refused(tmp_path: Path) -> None:
    assert filesystem(tmp_path, tmp_path / "nowhere") == ""
    check_place(tmp_path / "holdfast.db", tmp_path / "nowhere")


def mounts(folder: Path) -> Path:
    """A machine with a local disk, a network share with a local disk inside, and mounts with odd names."""
    table = folder / "mounts"
    lines = (
        "/dev/vda1 / ext4 rw 0 0",
        "proc /proc proc rw 0 0",
        "nas:/share /srv/share nfs4 rw,vers=4.2 0 0",
        "/dev/vdb /srv/share/local xfs rw 0 0",
        r"//nas/disk /mnt/my\040disk cifs rw 0 0",
        "host: /mnt/dräger fuse.sshfs rw 0 0",
    )
    write(table, "\n".join(lines) + "\n")
    return table


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
