"""What is left of a rate, and what has become of a unit's CPU, as things gather. Plots use it too: no packages."""

from __future__ import annotations

from collections.abc import Mapping

EMPTY = "E-0"
"""The scenario with which those that grew are compared, each time in the same round."""


def shares(empty: Mapping[str, float], grown: Mapping[str, float]) -> dict[str, float]:
    """`kept` of the rate, and how many times as much CPU a unit takes, of side and server; what is not known is not
    there."""
    found = {}
    if empty.get("rate") and grown.get("rate") is not None:
        found["kept"] = grown["rate"] / empty["rate"]
    if cpu_us(empty) and cpu_us(grown):
        found["cpu_times"] = cpu_us(grown) / cpu_us(empty)
    return found


def cpu_us(values: Mapping[str, float]) -> float:
    """What a unit takes, of side and server; 0 if it is not known or nothing was done."""
    return values.get("side_cpu_us", 0.0) + values.get("server_cpu_us", 0.0) if values.get("rate") else 0.0
