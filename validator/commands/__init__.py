"""One module per command, named after it, imported when it is typed: its `command` is the function, or the group."""
