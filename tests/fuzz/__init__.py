"""Fuzzing: thousands of damaged artifact folders and runbooks, none of which may raise, or end in GO."""
