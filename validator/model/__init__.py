"""The values that cross layers. Nothing here reads a file, starts a process or knows how a report looks."""
