"""Small pictures without a library: lines over a logarithmic axis, as SVG text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Point = tuple[float, float]

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 60, 190, 34, 40
COLOURS = ("#1f4e79", "#c0504d", "#5b8c3e", "#8064a2", "#d98a1f", "#3b9fb0", "#7f7f7f", "#a8325a")


def lines(title: str, across: str, series: Mapping[str, Sequence[Point]], *, up_is_log: bool = False) -> str:
    """A picture of each series by name. Zero on a logarithmic axis stands at its left end."""
    points = [point for each in series.values() for point in each]
    xs = sorted({x for x, _ in points})
    top = max((y for _, y in points), default=1.0) * 1.1 or 1.0
    bottom = min((y for _, y in points if y > 0), default=0.1) / 1.5 if up_is_log else 0.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        ' font-size="10">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="12">{title}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) // 2}" y="{HEIGHT - 6}" text-anchor="middle">{across}</text>',
    ]
    for x in xs:
        at = _across(x, xs)
        parts.append(f'<text x="{at:.0f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{x:,.0f}</text>')
    for y in _marks(bottom, top, up_is_log):
        at = _up(y, bottom, top, up_is_log)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 3:.1f}" text-anchor="end">{y:,.4g}</text>')
    for place, (name, each) in enumerate(series.items()):
        colour = COLOURS[place % len(COLOURS)]
        path = " ".join(f"{_across(x, xs):.1f},{_up(y, bottom, top, up_is_log):.1f}" for x, y in each)
        dashes = ' stroke-dasharray="5 3"' if place >= len(COLOURS) else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        parts.append(f'<rect x="{WIDTH - RIGHT + 12}" y="{TOP + 16 * place}" width="10" height="3" fill="{colour}"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 28}" y="{TOP + 16 * place + 5}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _across(x: float, xs: Sequence[float]) -> float:
    low = math.log10(max(1.0, xs[0] or (xs[1] / 100 if len(xs) > 1 else 1.0)))
    high = math.log10(max(10.0, xs[-1]))
    share = (max(low, math.log10(max(x, 1.0))) - low) / ((high - low) or 1.0)
    return LEFT + 10 + share * (WIDTH - LEFT - RIGHT - 20)


def _up(y: float, bottom: float, top: float, is_log: bool) -> float:
    share = math.log(max(y, bottom) / bottom) / math.log(top / bottom) if is_log else (y - bottom) / (top - bottom)
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _marks(bottom: float, top: float, is_log: bool) -> list[float]:
    if is_log:
        powers = range(math.floor(math.log10(bottom)), math.floor(math.log10(top)) + 1)
        return [mark for power in powers for mark in (10.0**power, 3 * 10.0**power) if bottom <= mark <= top]
    step = 10 ** math.floor(math.log10(top)) / 2
    while top / step > 6:
        step *= 2
    return [step * number for number in range(int(top / step) + 1)]
