"""Kinds of phases, a file each: everything that only that kind knows. Only `registry` is imported from above."""
