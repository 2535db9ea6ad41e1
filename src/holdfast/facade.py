"""`Holdfast`: everything callers use, in one object."""

from __future__ import annotations

from holdfast.runtime import Upkeep


class Holdfast(Upkeep):
    """A durable runtime on one database: a path, `sqlite:///…`, `:memory:` or `postgresql://…`.

    Use it as an async context manager, or call `open` and `close`. Opening migrates; that is safe to repeat.
    """
