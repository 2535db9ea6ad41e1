"""The description of the API is true: generated requests meet no accident and no answer that it does not know."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.result import Ok

from holdfast import Holdfast
from holdfast.http import Limits, create_app
from holdfast.http.server import Server
from tests.http.clogs import register

load_all_checks()
WANTED = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
STREAMS = r"/(events|chat)"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An app with a run of every kind, on a loop of its own: the generator of requests knows none."""
    ready, stop = threading.Event(), threading.Event()
    told: dict[str, Any] = {}
    path = tmp_path_factory.mktemp("described") / "holdfast.db"
    thread = threading.Thread(target=lambda: asyncio.run(_serve(path, told, ready, stop)))
    thread.start()
    assert ready.wait(20)
    yield told["base"]
    stop.set()
    thread.join(20)


async def _serve(path: Path, told: dict[str, Any], ready: threading.Event, stop: threading.Event) -> None:
    async with Holdfast(str(path)) as hf:
        register(hf)
        await hf.create_run(session_id="s1", clog_id="chat", input={"text": "hi"}, run_id="r1")
        await hf.drain()
        server = Server(create_app(hf, limits=Limits(stream_s=0.1)), host="127.0.0.1", port=0)
        serving = asyncio.create_task(server.serve())
        await server.ready.wait()
        told["base"] = f"http://127.0.0.1:{server.address[1]}"
        ready.set()
        await asyncio.to_thread(stop.wait)
        server.should_exit = True
        await serving
        await server._service.tails.close()


def test_it_is_openapi_3_1_and_names_every_route_of_the_contract(served: str) -> None:
    schema = schemathesis.openapi.from_url(f"{served}/openapi.json")
    paths = schema.raw_schema["paths"]

    assert schema.raw_schema["openapi"].startswith("3.1")
    contract = """
        /api/runs /api/runs/{run_id} /api/runs/{run_id}/cancel /api/runs/{run_id}/signal /api/runs/{run_id}/approve
        /api/runs/{run_id}/reject /api/runs/{run_id}/resume /api/runs/{run_id}/fork /api/runs/{run_id}/replay
        /api/runs/{run_id}/events /api/runs/{run_id}/journal /api/runs/{run_id}/inspect /api/runs/{run_id}/explain
        /api/runs/{run_id}/graph /api/advance /api/sessions /api/sessions/{session_id}
        /api/sessions/{session_id}/cancel /api/sessions/{session_id}/events /api/chat/{session_id} /api/approvals
        /api/outbox /api/outbox/{outbox_id}/requeue /api/tool-calls /api/turns /api/proposals
        /api/proposals/{request_id}/approve /api/proposals/{request_id}/deny /api/proposals/{request_id}/apply
        /api/proposals/{request_id}/revert /api/health /livez /readyz /metrics
    """
    assert set(contract.split()) <= set(paths)


@pytest.mark.parametrize("examples", [4, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_generated_requests_meet_no_accident(served: str, examples: int) -> None:
    schema = schemathesis.openapi.from_url(f"{served}/openapi.json")
    checks = [check for check in CHECKS.get_all() if check.__name__ in WANTED]
    assert len(checks) == len(WANTED)
    tried = 0
    for found in schema.exclude(path_regex=STREAMS).get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            try:
                _play(operation.as_strategy(generation_mode=mode), checks, examples)
            except Unsatisfiable:
                continue
            tried += 1
    assert tried >= 50


def _play(cases: Any, checks: list[Any], examples: int) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def play(case: Any) -> None:
        case.call_and_validate(checks=checks)

    play()
