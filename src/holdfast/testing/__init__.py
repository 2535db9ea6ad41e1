"""The public test kit: a clock that tests move, and simulations of your own clogs under crashes.

clock = VirtualClock()
async with Holdfast(":memory:", clock=clock) as hf:
    hf.register(digest)
    await hf.create_run(session_id="s1", clog_id="digest", input="go")
    await hf.drain()                  # runs what is due and jumps the clock from one due time to the next

simulate(setup, seeds=100)            # the same clogs, several workers, crashes at every commit boundary
"""

from __future__ import annotations

from holdfast.testing.clock import VirtualClock
from holdfast.testing.simulation import SimulationFailed, SimulationReport, simulate

__all__ = ["SimulationFailed", "SimulationReport", "VirtualClock", "simulate"]
