"""Past validations: an index that the run folders can always rebuild, trends over them, and the page that shows both.

The parts are imported where they are used: a command that only lists needs no page.
"""
