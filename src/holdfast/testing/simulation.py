"""`simulate`: your own clogs under seeded schedules, with several workers that crash at every commit boundary.

One simulated process is one runtime on a database that all of them share. Every call of it waits at a gate, and the
schedule, drawn from the seed, decides whose goes next, whose process dies before or after it, and when a lease is
allowed to run out. Time and chance come from the seed too, so a seed that failed fails again in the same way.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable
from typing import Any, TypeVar, TypeVarTuple

import msgspec

from holdfast import ambient
from holdfast.errors import HoldfastError, InvalidValue
from holdfast.facade import Holdfast
from holdfast.moments import from_us, to_us
from holdfast.store import Database, connect
from holdfast.testing.clock import VirtualClock
from holdfast.testing.stage import Crashed, Gate, GatedDatabase, Waiting

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Step = Callable[[Holdfast], Awaitable[Any]]
FAULTS = ("crash", "lease", "hint")
STEPS_MAX = 100_000
TURNS = 25
"""How often everybody may go on before the schedule looks who waits: more than any chain of awaits is long."""
QUIET_TURNS = 5
"""It looks earlier when so often in a row nobody wanted to go on. Functions in threads need a moment."""
STEP_S = 0.01
LEASES_MAX = 4
HINTS_LOST = 0.5
TAIL = 40


class SimulationFailed(AssertionError):
    """A seed under which something went wrong. `simulate(setup, seeds=[seed])` shows it again."""

    def __init__(self, seed: int, problem: str, schedule: list[str]) -> None:
        last = "\n  ".join(schedule[-TAIL:])
        super().__init__(f"seed {seed}: {problem}\nthe last of {len(schedule)} steps:\n  {last}")
        self.seed = seed
        self.problem = problem
        self.schedule = schedule


class SimulationReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was played. It may be awaited, for the sake of tests that are coroutines."""

    seeds: int
    steps: int
    commits: int
    crashes: int
    leases_lost: int
    schedules: tuple[tuple[str, ...], ...]

    def __await__(self) -> Generator[Any, None, SimulationReport]:
        yield from ()
        return self


def simulate(
    setup: Step,
    *,
    seeds: int | Iterable[int] = 100,
    workers: int = 3,
    faults: Collection[str] = FAULTS,
    check: Step | None = None,
) -> SimulationReport:
    """For each seed: `await setup(hf)`, then a random schedule until nothing is left to do, then every invariant.

    `setup` registers clogs and gives runs something to do; `check`, if given, judges the result. A seed that fails
    raises `SimulationFailed` with the seed and the schedule.
    """
    unknown = sorted(set(faults) - set(FAULTS))
    if unknown:
        raise InvalidValue(f"unknown faults {unknown}; use some of {list(FAULTS)}")
    chosen = range(seeds) if isinstance(seeds, int) else list(seeds)
    played: list[_Play] = []
    # Without faults first: how many commits there are is how many boundaries a crash can choose from.
    quiet = _Play(setup, check, seed=0, workers=workers, faults=(), commits=0)
    _in_a_loop_of_its_own(quiet)
    for seed in chosen:
        play = _Play(setup, check, seed=seed, workers=workers, faults=faults, commits=quiet.commits)
        _in_a_loop_of_its_own(play)
        played.append(play)
    return SimulationReport(
        seeds=len(played),
        steps=sum(len(play.schedule) for play in played),
        commits=quiet.commits,
        crashes=sum(play.crashes for play in played),
        leases_lost=sum(play.leases_lost for play in played),
        schedules=tuple(tuple(play.schedule) for play in played),
    )


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose timers know only simulated time, and that counts how often somebody wants to go on."""

    simulated_s = 0.0
    wanted = 0

    def time(self) -> float:
        return self.simulated_s

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        self.wanted += 1
        return super().call_soon(callback, *args, context=context)


def _loop() -> _Loop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _Loop)
    return loop


def _in_a_loop_of_its_own(play: _Play) -> None:
    """Also where the caller's thread runs a loop already."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=_Loop) as runner:
                loop = runner.get_loop()
                loop.set_exception_handler(_ignore_the_dead)
                with ambient.inside(ambient.World(play.seed, loop.time)) as world:
                    runner.run(play.run(world), context=contextvars.copy_context())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name=f"holdfast-simulation-{play.seed}")
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def _ignore_the_dead(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), Crashed):
        loop.default_exception_handler(context)


class _Play:
    """One seed."""

    def __init__(
        self, setup: Step, check: Step | None, *, seed: int, workers: int, faults: Collection[str], commits: int
    ) -> None:
        self.seed = seed
        self.schedule: list[str] = []
        self.commits = self.crashes = self.leases_lost = 0
        self._setup = setup
        self._check = check
        self._workers = workers
        self._faults = faults
        self._boundaries = commits
        self._crash_at: dict[int, bool] = {}
        self._clock = VirtualClock()
        self._processes: dict[str, _Process] = {}
        self._born = 0

    async def run(self, world: ambient.World) -> None:
        self._chance = world.chance
        self._gate = Gate()
        if "crash" in self._faults and self._boundaries:
            points = self._chance.randint(1, 3)
            self._crash_at = {
                self._chance.randint(1, self._boundaries): self._chance.random() < 0.5 for _ in range(points)
            }
        database = connect(":memory:", lambda: to_us(self._clock.now()))
        async with Holdfast(clock=self._clock, database=database) as judge:
            await self._setup(judge)
            await judge.journal.close()
            try:
                await self._play(judge, database)
                await self._judge(judge)
                if self._check is not None:
                    await self._check(judge)
            except SimulationFailed:
                raise
            except (AssertionError, HoldfastError) as error:
                raise SimulationFailed(self.seed, f"{type(error).__name__}: {error}", self.schedule) from error
            finally:
                for process in list(self._processes.values()):
                    await process.end()

    async def _play(self, judge: Holdfast, database: Database) -> None:
        for _ in range(self._workers):
            self._start(judge, database)
        while len(self.schedule) < STEPS_MAX:
            await self._settle()
            self._check_mistakes()
            self._clear_the_dead(judge, database)
            if self._is_quiet() and not await self._wake(judge):
                return
            waiting = self._choose()
            if waiting is not None:
                await self._let_through(judge, waiting)
            self._pass_time()
        raise SimulationFailed(self.seed, f"not quiet after {STEPS_MAX} steps", self.schedule)

    def _start(self, judge: Holdfast, database: Database) -> None:
        self._born += 1
        name = f"p{self._born}"
        lossy = self._chance.random if "hint" in self._faults else None
        self._processes[name] = _Process(name, judge, GatedDatabase(database.beside(), self._gate, name), lossy)
        self._processes[name].start(self._gate)

    async def _settle(self) -> None:
        """Let everybody go on until all of them wait for the schedule."""
        loop = _loop()
        turns = quiet = 0
        while turns < TURNS and quiet < QUIET_TURNS:
            turns += 1
            if self._gate.in_flight:
                await self._gate.landed()
                turns = 0
            before = loop.wanted
            await asyncio.sleep(0)
            # We ourselves wanted to go on, once.
            quiet = quiet + 1 if loop.wanted == before + 1 else 0

    def _choose(self) -> Waiting | None:
        """Whoever has something to do before whoever only looks for it, mostly."""
        waiting = self._gate.waiting
        if not waiting:
            return None
        busy = [each for each in waiting if each.call not in _Process.LOOKING]
        looking = [each for each in waiting if each.call in _Process.LOOKING and not self._looked_in_vain(each)]
        pool = busy + looking if busy or looking else waiting
        return self._chance.choice(pool)

    def _looked_in_vain(self, waiting: Waiting) -> bool:
        return waiting.call in self._processes[waiting.process].in_vain

    async def _let_through(self, judge: Holdfast, waiting: Waiting) -> None:
        self.schedule.append(str(waiting))
        if waiting.call in COMMITS:
            self.commits += 1
            crash = self._crash_at.pop(self.commits, None)
            if crash is True:
                self._crash(waiting.process, "before")
                return
            if crash is False:
                self.crashes += 1
                waiting.crash_after = True
                self.schedule.append(f"{waiting.process} crashes after it")
            elif self._loses_a_lease():
                self.leases_lost += 1
                self.schedule.append("a lease runs out")
                self._clock.advance(judge.lease_ms / 1_000 + 1)
                self._news()
        if waiting.call in WRITES:
            self._news()
        self._gate.open(waiting)

    def _loses_a_lease(self) -> bool:
        return "lease" in self._faults and self.leases_lost < LEASES_MAX and self._chance.random() < 0.05

    def _crash(self, name: str, when: str) -> None:
        self.crashes += 1
        self.schedule.append(f"{name} crashes {when} it")
        self._gate.kill(name)

    def _check_mistakes(self) -> None:
        for process in self._processes.values():
            for error in process.mistakes:
                text = f"a tick raised {type(error).__name__}: {error}"
                raise SimulationFailed(self.seed, text, self.schedule) from error

    def _clear_the_dead(self, judge: Holdfast, database: Database) -> None:
        """A process that died is replaced by another, which knows nothing of it."""
        for name in [name for name in self._processes if name in self._gate.dead]:
            self._processes.pop(name).bury()
            self._news()
            self._start(judge, database)

    def _is_quiet(self) -> bool:
        return not self._gate.in_flight and all(process.is_idle for process in self._processes.values())

    async def _wake(self, judge: Holdfast) -> bool:
        """Jump to the next due time; False if there is none. Cron has no end, so nobody waits for its next window."""
        store = judge.journal.store
        timers = await store.next_timers()
        wanted = (await store.next_due(None), timers.question, timers.one_shot)
        dues = [due for due in wanted if due is not None]
        if not dues:
            return False
        due_at = min(dues)
        ahead = (from_us(due_at) - self._clock.now()).total_seconds()
        self.schedule.append(f"time passes: {ahead:.3f} s")
        self._clock.advance(max(0.0, ahead))
        self._news()
        return True

    def _news(self) -> None:
        for process in self._processes.values():
            process.hear()

    def _pass_time(self) -> None:
        _loop().simulated_s += STEP_S

    async def _judge(self, judge: Holdfast) -> None:
        report = await judge.fsck()
        if not report.ok:
            problems = "; ".join(f"{problem.law} {problem.where}: {problem.detail}" for problem in report.problems[:5])
            raise SimulationFailed(self.seed, f"broken laws: {problems}", self.schedule)


WRITES = frozenset({"write", "write_locked", "append", "execute", "record"})
COMMITS = WRITES | {"claim"}


class _NoPulse:
    """Leases run out only when the schedule says so."""

    def keep(self, hold: object) -> None: ...

    def drop(self, hold: object) -> None: ...

    async def close(self) -> None: ...


class _Process:
    """One worker: it looks for work and for what others left behind, and runs what it finds."""

    LOOKING = ("claims", "sweeps")

    def __init__(self, name: str, judge: Holdfast, database: GatedDatabase, lossy: Callable[[], float] | None) -> None:
        self.name = name
        self.in_vain: set[str] = set()
        self.mistakes: list[BaseException] = []
        self._looking: set[str] = set()
        self._hf = Holdfast(clock=judge._clock, lease_ms=judge.lease_ms, database=database)
        self._hf._registry = judge._registry
        self._hf._pulse = _NoPulse()  # type: ignore[assignment]
        if lossy is not None:
            self._lose_hints(lossy)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ticks: set[asyncio.Task[Any]] = set()

    @property
    def is_idle(self) -> bool:
        return not self._ticks and not self._hf.journal.is_busy and set(self.LOOKING) <= self.in_vain

    def start(self, gate: Gate) -> None:
        self._tasks = {asyncio.create_task(self._claim(gate)), asyncio.create_task(self._sweep(gate))}

    def bury(self) -> None:
        """Stop every task of a dead process where it stands."""
        for task in (*self._tasks, *self._ticks):
            task.cancel()

    async def end(self) -> None:
        self.bury()
        await asyncio.gather(*self._tasks, *self._ticks, return_exceptions=True)

    async def _claim(self, gate: Gate) -> None:
        while True:
            await gate.wait(self.name, "claims")
            since = ambient.monotonic()
            taken = await self._look("claims", self._hf.take(None, clogs=self._hf._registry.names, limit=2))
            for item in taken:
                lease_us = self._hf.lease_ms * 1_000
                tick = asyncio.create_task(self._hf._executor.run(item, lease_us=lease_us, since=since))
                self._ticks.add(tick)
                tick.add_done_callback(self._ended)

    def _ended(self, tick: asyncio.Task[Any]) -> None:
        """A tick may lose its lease or die with its process; anything else that it raises is a mistake of ours."""
        self._ticks.discard(tick)
        error = None if tick.cancelled() else tick.exception()
        if error is not None and not isinstance(error, Crashed):
            self.mistakes.append(error)

    async def _sweep(self, gate: Gate) -> None:
        while True:
            await gate.wait(self.name, "sweeps")
            await self._look("sweeps", self._hf.journal.sweep())

    async def _look(self, what: str, search: Awaitable[T]) -> T:
        """Search, and remember if it was in vain: nothing was found, and nothing new came while it looked."""
        self._looking.add(what)
        found = await search
        if not found and what in self._looking:
            self.in_vain.add(what)
        return found

    def hear(self) -> None:
        """Something happened, so whoever looked in vain, or is just looking, must look again."""
        self.in_vain.clear()
        self._looking.clear()

    def _lose_hints(self, chance: Callable[[], float]) -> None:
        """What would be delivered at once is sometimes left to the sweep, as after a crash."""
        journal: Any = self._hf.journal
        deliver = journal.soon

        def soon(delivery: Any) -> asyncio.Future[None]:
            if chance() >= HINTS_LOST:
                task: asyncio.Future[None] = deliver(delivery)
                return task
            delivery.close()
            lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            lost.set_result(None)
            return lost

        journal.soon = soon
