"""`mappa view`: local web pages on runs, live while they train."""
