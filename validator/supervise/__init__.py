"""Carrying a plan out: processes supervised and contained, a journal that survives, one validation at a time."""
