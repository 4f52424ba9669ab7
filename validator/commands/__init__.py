"""What each command of the command line does: one thin function per command, imported when it is typed."""
