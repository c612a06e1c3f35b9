"""`mappa view`: pages on runs in a browser of this machine, live while they train. Needs `mappa-core[view]`."""
