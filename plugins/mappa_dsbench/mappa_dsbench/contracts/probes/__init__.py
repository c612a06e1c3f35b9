"""Programs that open what agents left. They run in the cage and import nothing of Mappa: each is sent as one text, with
what it takes from this folder before it."""
