"""The stages that `workflow` strings together.

`session` holds the effects of a running validation, `phases` runs one phase after another, `disk` reads back what
happened, `reporting` judges and writes. A state is a value; each stage takes one and returns the next.
"""
