"""A real OpenID provider in a process of its own: PKCE required, refresh tokens that rotate, reuse punished."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.crash.programs import require

FOLDER = Path(__file__).parent / "provider"
CLIENT_ID, CLIENT_SECRET = "holdfast", "canary-client-secret-0123456789"
ENDS_S = 10


class TestProvider:
    """What tests know of it: its address, and every request for a token that it answered."""

    __test__ = False

    def __init__(self, url: str) -> None:
        self.url = url

    def asked(self, grant: str) -> list[dict[str, Any]]:
        """The requests for tokens of this kind, in their order."""
        return [each for each in self.told("asked") if each["grant"] == grant]

    def told(self, what: str) -> Any:
        """What it answers to tests alone: `asked`, `hang`, `held`."""
        with urlopen(f"{self.url}/{what}", timeout=ENDS_S) as answer:
            return json.load(answer)

    @property
    def refreshes(self) -> int:
        return len(self.asked("refresh_token"))


@contextmanager
def running(*redirect_uris: str, **told: Any) -> Iterator[TestProvider]:
    """A provider that knows us by these redirect URIs; gone when its user is."""
    client = {
        "client_id": CLIENT_ID,
        "client_secret": CLIENT_SECRET,
        "redirect_uris": list(redirect_uris),
        "grant_types": ["authorization_code", "refresh_token"],
    }
    node = require("node")
    assert (FOLDER / "node_modules").exists(), "its packages are missing: python -m tools.system"
    with subprocess.Popen(
        [node, "server.mjs", json.dumps({"clients": [client], **told})],
        cwd=FOLDER,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            assert process.stdout is not None
            yield TestProvider(json.loads(next(line for line in process.stdout if line.startswith("{")))["here"])
        finally:
            process.terminate()
