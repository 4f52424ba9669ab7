"""The run folder: its names and header, the journal of events, and what they say after the run is over."""
