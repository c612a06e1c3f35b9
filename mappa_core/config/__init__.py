"""Settings: their schema, their layers, and the origin of every value."""
