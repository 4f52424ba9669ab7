"""A validation in the words of experiment trackers: `content` is what they get, `targets` how each gets it."""
