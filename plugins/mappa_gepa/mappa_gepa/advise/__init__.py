"""`mappa advise`: which fix of a team is worth making, from one run's verdicts and from small trials."""
