"""The pure centre: facts, the run machine, and the folds over them.

Nothing in here knows a clock, a database, a thread or an event loop. What happens to a run is decided by
`decide` and remembered by `evolve`; both are plain functions of their arguments.
"""
