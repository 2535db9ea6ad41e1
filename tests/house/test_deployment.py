"""The files that deploy Holdfast fit each other, the code and the programs that read them. No engine runs here."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.cli.app import app
from tests.crash.programs import require
from tests.http.households import Process, start
from tests.http.readers import read, types
from tools import environment

ROOT = Path(__file__).parents[2]
SOURCE = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.py")))
FILES = ("compose.yaml", "compose.multi.yaml")


def services(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))["services"]
    return found


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile, one pair for each instruction."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def is_read(name: str) -> bool:
    """Does the code read it? The name of a provider stands for any."""
    provider = re.fullmatch(r"HOLDFAST_OAUTH_OIDC(_[A-Z_]+)", name)
    return provider[1] in SOURCE and "HOLDFAST_OAUTH_" in SOURCE if provider else name in SOURCE


class TestStack:
    @pytest.mark.clause("W-09", "W-40", "WB-17")
    @pytest.mark.parametrize(
        ("name", "replicas", "others"), [("compose.yaml", None, set()), ("compose.multi.yaml", 2, {"balancer"})]
    )
    def test_roles_are_processes_of_their_own(self, name: str, replicas: int | None, others: set[str]) -> None:
        found = services(name)

        assert set(found) == {"postgres", "migrate", "api", "worker"} | others
        assert {role: found[role]["environment"]["HOLDFAST_ROLE"] for role in ("api", "worker")} == {
            "api": "api",
            "worker": "worker",
        }
        assert [found[role].get("deploy", {}).get("replicas") for role in ("api", "worker")] == [replicas] * 2
        assert (found["worker"]["restart"], found["migrate"]["restart"]) == ("unless-stopped", "no")
        assert "${WORKER_CONCURRENCY:-1}" in found["worker"]["command"]

    def test_both_files_describe_one_stack(self) -> None:
        one, many = (services(name) for name in FILES)

        del one["api"]["ports"], many["balancer"]
        for role in ("api", "worker"):
            del many[role]["deploy"]
        assert one == many

    @pytest.mark.parametrize("name", FILES)
    def test_nobody_begins_before_the_schema_is_there(self, name: str) -> None:
        found = services(name)

        assert found["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
        assert found["postgres"]["healthcheck"]["test"][:2] == ["CMD", "pg_isready"]
        for role in ("api", "worker"):
            assert found[role]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}

    @pytest.mark.parametrize("name", FILES)
    def test_a_tick_has_longer_to_end_than_the_drain_takes(self, name: str) -> None:
        worker = services(name)["worker"]

        drain_s = float(worker["command"][worker["command"].index("--drain-s") + 1])
        assert float(worker["stop_grace_period"].removesuffix("s")) > drain_s

    @pytest.mark.parametrize("name", FILES)
    def test_containers_can_change_nothing_and_are_shown_to_this_machine_only(self, name: str) -> None:
        found = services(name)

        for service in (found[each] for each in found if each != "postgres"):
            assert service["read_only"]
            assert service["cap_drop"] == ["ALL"]
            assert service["security_opt"] == ["no-new-privileges:true"]
        ports = [port for service in found.values() for port in service.get("ports", [])]
        assert len(ports) == 1
        assert ports[0].startswith("127.0.0.1:")

    @pytest.mark.parametrize("name", FILES)
    def test_every_word_is_one_of_the_command_line(self, name: str) -> None:
        known = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}

        words = {service["command"][0] for service in services(name).values() if "command" in service}
        assert words == {"migrate", "serve"}
        assert words <= known

    @pytest.mark.parametrize("name", FILES)
    def test_compose_accepts_it_with_fresh_secrets_and_refuses_it_without(self, name: str, tmp_path: Path) -> None:
        program = require("docker-compose")

        def configure(text: str) -> subprocess.CompletedProcess[str]:
            (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
            (tmp_path / ".env").write_text(text, encoding="utf-8")
            kept = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
            asked = [program, "-f", name, "config"]
            return subprocess.run(asked, cwd=tmp_path, env=kept, capture_output=True, text=True, check=False)

        accepted, refused = configure(environment.new()), configure(environment.example())

        assert accepted.returncode == 0, accepted.stderr
        api = yaml.safe_load(accepted.stdout)["services"]["api"]["environment"]
        assert (api["HOLDFAST_AUTH"], api["HOLDFAST_ROLE"], api["HOLDFAST_PROFILE"]) == ("token", "api", "dev-local")
        assert refused.returncode != 0
        assert "make .env first" in refused.stderr


class TestEnvironment:
    def test_files_and_page_are_of_today(self) -> None:
        page = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")

        assert (ROOT / ".env.example").read_text(encoding="utf-8") == environment.example()
        assert environment.written(page) == page

    @pytest.mark.clause("WB-17")
    @pytest.mark.parametrize("name", [each.name for each in environment.HOLDFAST])
    def test_what_can_be_said_is_heard(self, name: str) -> None:
        assert is_read(name)

    def test_what_is_heard_can_be_said(self) -> None:
        heard = set(re.findall(r"\bHOLDFAST_[A-Z0-9_]*[A-Z0-9]\b", SOURCE))
        assert heard - {each.name for each in environment.HOLDFAST} == set()

    @pytest.mark.parametrize("name", FILES)
    def test_compose_says_nothing_that_nobody_hears(self, name: str) -> None:
        listed = {each.name for each in (*environment.STACK, *environment.HOLDFAST)}
        text = (ROOT / name).read_text(encoding="utf-8")

        said = {key for service in services(name).values() for key in service.get("environment", {})}
        assert {key for key in said if key.startswith("HOLDFAST_")} <= listed
        assert set(re.findall(r"\$\{([A-Z_]+)", text)) <= listed

    def test_no_secret_has_a_default(self) -> None:
        one, two = environment.new().splitlines(), environment.new().splitlines()

        fresh = {line.partition("=")[0] for line, other in zip(one, two, strict=True) if line != other}
        assert fresh == {"POSTGRES_PASSWORD", "HOLDFAST_ENCRYPTION_KEYS"}
        assert all(f"\n{name}=\n" in environment.example() for name in fresh)
        for name in FILES:
            text = (ROOT / name).read_text(encoding="utf-8")
            assert not any(re.search(rf"\$\{{{secret}(:-|\}})", text) for secret in fresh)

    def test_a_password_needs_no_quoting_in_an_address(self) -> None:
        (line,) = [line for line in environment.new().splitlines() if line.startswith("POSTGRES_PASSWORD=")]
        assert re.fullmatch(r"POSTGRES_PASSWORD=[0-9a-f]{48}", line)

    def test_the_tool_writes_where_it_is_told(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "docs").mkdir()
        page = tmp_path / "docs/deploy.md"
        page.write_text(f"before\n{environment.BEGIN}old\n{environment.END}\nafter\n", encoding="utf-8")

        assert [environment.main(words, tmp_path) for words in (["--write"], [], ["--what"])] == [0, 0, 2]

        assert page.read_text(encoding="utf-8").startswith(f"before\n{environment.BEGIN}| variable | says |\n")
        assert (tmp_path / ".env.example").read_text(encoding="utf-8") == environment.example()
        assert "POSTGRES_PASSWORD=" in capsys.readouterr().out


class TestImage:
    def test_it_runs_as_nobody_special_and_is_the_command_line(self) -> None:
        last = dict(instructions())

        assert last["USER"] == "10001:10001"
        assert json.loads(last["ENTRYPOINT"]) == ["holdfast"]
        assert json.loads(last["CMD"]) == ["serve"]

    def test_what_built_it_stays_behind(self) -> None:
        words = instructions()
        last = max(place for place, (word, _) in enumerate(words) if word == "FROM")

        assert [rest.split()[0] for word, rest in words if word == "FROM"] == ["python:3.11-slim"] * 2
        assert [rest for word, rest in words[last:] if word == "COPY"] == ["--from=build /opt/holdfast /opt/holdfast"]
        assert any("pip uninstall" in rest for word, rest in words[last:] if word == "RUN")

    def test_nothing_goes_to_the_builder_that_is_not_built_from(self) -> None:
        lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        sent = {line.removeprefix("!") for line in lines if line.startswith("!")}
        copied = [rest.split()[:-1] for word, rest in instructions() if word == "COPY" and "--from" not in rest]

        assert "*" in lines
        assert sent == {name for names in copied for name in names}

    @pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False), (None, False)])
    async def test_its_health_is_what_livez_says(self, status: int | None, healthy: bool) -> None:
        (check,) = [rest for word, rest in instructions() if word == "HEALTHCHECK"]
        program, *arguments = json.loads(check.partition("CMD ")[2])
        assert program == "python"

        async with answering(lambda path: status if path == "/livez" else 404) as (port, _):
            here = [each.replace("8787", str(port if status else free_port())) for each in arguments]
            asked = await asyncio.create_subprocess_exec(sys.executable, *here, stderr=asyncio.subprocess.DEVNULL)
            code = await asked.wait()

        assert (code == 0) == healthy


class TestBalancer:
    CONFIG = ROOT / "deploy/haproxy.cfg"

    def test_haproxy_accepts_it(self) -> None:
        told = subprocess.run(
            [require("haproxy"), "-c", "-f", str(self.CONFIG)], capture_output=True, text=True, check=False
        )
        assert told.returncode == 0, told.stderr

    @pytest.mark.clause("WB-17")
    async def test_it_remembers_nobody_holds_nothing_back_and_leaves_out_who_leaves(self, tmp_path: Path) -> None:
        leaving: set[str] = set()

        def ready(name: str) -> Callable[[str], int]:
            return lambda path: 503 if path == "/readyz" and name in leaving else 200

        async with (
            answering(ready("a")) as (first, a),
            answering(ready("b")) as (second, b),
            self.balancing(tmp_path, {"a": first, "b": second}) as port,
        ):
            await heard(a, "/readyz")
            await heard(b, "/readyz")
            # Answers that go on: their first bytes are here before their last ones are said.
            streams = [await streaming(port) for _ in range(2)]
            assert (a.count("/stream"), b.count("/stream")) == (1, 1)
            for _ in range(6):
                await fetch(port, "/call")
            assert min(a.count("/call"), b.count("/call")) >= 2

            leaving.add("a")
            await heard(a, "/readyz", times=2)
            calls = a.count("/call")
            answers = [await fetch(port, "/call") for _ in range(6)]
            assert all(b" 200 " in answer for answer in answers)
            assert a.count("/call") == calls
            for writer in streams:
                writer.close()

    @asynccontextmanager
    async def balancing(self, folder: Path, ports: dict[str, int]) -> AsyncIterator[int]:
        """The real file, with addresses of this machine instead of those of containers."""
        port = free_port()
        lines = "\n".join(f"    server {name} 127.0.0.1:{number}" for name, number in ports.items())
        text = self.CONFIG.read_text(encoding="utf-8").replace("bind :8080", f"bind 127.0.0.1:{port}")
        text, replaced = re.subn(r" +server-template .*", lines, text)
        assert replaced == 1
        (folder / "haproxy.cfg").write_text(text, encoding="utf-8")
        process = await asyncio.create_subprocess_exec(
            require("haproxy"), "-db", "-f", str(folder / "haproxy.cfg"), stderr=asyncio.subprocess.DEVNULL
        )
        try:
            yield port
        finally:
            process.terminate()
            await asyncio.wait_for(process.wait(), 10)


@asynccontextmanager
async def answering(status: Callable[[str], int | None]) -> AsyncIterator[tuple[int, list[str]]]:
    """A server that answers with a status, and a stream that begins and never ends; the list holds what was asked."""
    asked: list[str] = []
    writers: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        head = await reader.read(4096)
        if not head:
            writer.close()
            return
        path = head.split()[1].decode()
        asked.append(path)
        if path == "/stream":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nfirst")
            await writer.drain()
            return
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % (status(path) or 500))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], asked
    finally:
        server.close()
        for writer in writers:
            writer.close()


async def ask(port: int, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n".encode())
    return reader, writer


async def fetch(port: int, path: str) -> bytes:
    reader, writer = await ask(port, path)
    text = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return text


async def streaming(port: int) -> asyncio.StreamWriter:
    """A stream that has begun; close it."""
    reader, writer = await ask(port, "/stream")
    await asyncio.wait_for(reader.readuntil(b"first"), 5)
    return writer


async def heard(asked: list[str], path: str, *, times: int = 1) -> None:
    """Wait until this was asked so often from now on. Another process asks, so there is no event to wait for."""
    wanted = asked.count(path) + times
    async with asyncio.timeout(20):
        for _ in iter(lambda: asked.count(path) < wanted, False):
            await asyncio.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def spelled(value: str, told: dict[str, str]) -> str:
    """As compose reads it: `${NAME:-otherwise}`, and `${NAME:?why}` where nothing else will do."""
    return re.sub(r"\$\{(\w+)(?::([-?])([^}]*))?\}", lambda found: told.get(found[1]) or found[3] or "", value)


class TestTogether:
    @pytest.fixture
    def told(self, postgres_url: str) -> dict[str, str]:
        """What the stack's services are told, on a database of this machine."""
        fresh = dict(line.split("=", 1) for line in environment.new().splitlines() if re.match(r"[A-Z_]+=", line))
        place = {"HOLDFAST_DATABASE_URL": postgres_url, "HOLDFAST_SCHEMA": f"stack_{os.urandom(4).hex()}"}
        return {**{name: value for name, value in fresh.items() if value}, **place}

    @pytest.mark.clause("W-40", "W-09")
    async def test_the_services_of_the_stack_do_their_work_as_the_file_starts_them(self, told: dict[str, str]) -> None:
        found = services("compose.yaml")

        async def begun(name: str, *more: str) -> Process:
            service = found[name]
            words = [spelled(word, told) for word in service["command"] if word != "0.0.0.0"]
            words = [word for word in words if word != "--host"]
            said = {key: spelled(value, told) for key, value in service["environment"].items() if key not in told}
            return await start(*words, *more, **{**said, **told})

        async with AsyncExitStack() as stack:
            migrate = await begun("migrate")
            stack.push_async_callback(migrate.kill)
            assert await migrate.ended() == 0
            api, worker = await begun("api", "--port", "0"), await begun("worker", "--port", "0")
            for each in (api, worker):
                stack.push_async_callback(each.kill)
            await asyncio.gather(api.ready(), worker.ready())
            assert (await api.client.get("/api/runs")).status_code == 401
            api.client.headers["authorization"] = f"Bearer {await made_key(told)}"
            asked = await api.client.post("/api/runs", json={"session_id": "s", "message": "hello"})
            seen = await read(api.client, asked.headers["location"], until=lambda each: each.type == "run_started")
            page = await api.client.get("/")
            roles = [(await each.client.get("/api/health")).json()["run_role"] for each in (api, worker)]

        assert types(seen)[:2] == ["run_queued", "run_started"]
        assert page.headers["content-type"].startswith("text/html")
        assert roles == ["api", "worker"]

    @pytest.mark.clause("W-40")
    @pytest.mark.parametrize("name", FILES)
    def test_it_needs_no_cloud(self, name: str) -> None:
        images = {service["image"].partition(":")[0] for service in services(name).values()}

        assert images <= {"holdfast", "postgres", "haproxy"}


async def made_key(told: dict[str, str]) -> str:
    """As the compose file's first lines say: `keys create --user ada`."""
    asked = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from holdfast.cli import main; main()", "keys", "create", "--user", "ada", "--json"),
        env={**os.environ, **told, "PYTHONPATH": str(ROOT / "src")},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asked.communicate()
    return str(json.loads(out)["key"])
