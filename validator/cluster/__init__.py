"""Several machines: which of them are slow, alone or together."""
