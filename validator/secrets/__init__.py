"""Keep credentials and names out of what is stored and shared: patterns, masking, pseudonyms."""
