"""What the libraries of the server extra are needed for, and what works without them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.credentials.keys import K1

ROOT = Path(__file__).parents[2]
WITHOUT = """
import asyncio, sys
for name in ("cryptography", "authlib", "httpx2", "joserfc", "fastapi", "starlette"):
    sys.modules[name] = None
import holdfast
from holdfast.credentials import Tokens

async def main():
    async with holdfast.Holdfast(":memory:") as hf:
        made = await hf.api_keys.create("alice")
        assert (await hf.api_keys.verify(made.text)).user_id == "alice"
        assert (await hf.settings.change({"model": "m"})).model == "m"
        try:
            await hf.settings.change({"openai_api_key": "sk-0123456789"})
        except holdfast.HoldfastError as error:
            print(error.code, error)
        try:
            hf.office.providers
        except holdfast.HoldfastError as error:
            print(error.code, error)

asyncio.run(main())
"""


def run(program: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HOLDFAST_ENCRYPTION_KEYS": K1}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def test_nothing_of_the_extra_is_loaded_before_it_is_needed() -> None:
    loaded = run("import holdfast, holdfast.cli, sys; print(' '.join(sys.modules))").split()

    assert {"cryptography", "authlib", "httpx2", "joserfc", "fastapi", "starlette"} & set(loaded) == set()


def test_without_the_extra_it_says_what_to_install() -> None:
    lines = run(WITHOUT).splitlines()

    assert [line.partition(" ")[0] for line in lines] == ["extra_missing"] * 2
    assert all("pip install 'holdfast[server]'" in line for line in lines)


@pytest.mark.parametrize("configuration", ["file"], indirect=True)
def test_it_works_without_an_event_loop(database_url: str, configuration: str) -> None:
    with Holdfast(database_url).sync as hf:
        made = hf.api_keys.create("alice")
        hf.as_user("alice").settings.change({"openai_api_key": "sk-0123456789"})

        assert hf.api_keys.verify(made.text).user_id == "alice"
        assert hf.settings.provider_key("openai", "alice") == "sk-0123456789"
