"""Model files: what is in them, and the decoder that they describe. Knows no request, no schedule and no network."""
