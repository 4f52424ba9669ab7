"""Sanity checks that a user runs on their own machine: ``python -m pytest --pyargs nsa.parity``.

The tests here are few and quick; they compare every implementation that the machine can run with
:mod:`nsa.parity.oracle`, which shares no code with what it checks.
"""
