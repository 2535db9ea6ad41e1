"""The sides of a measurement. Each is a program of its own, in an environment of its own, driven over a pipe."""
