"""How a run's settings are composed, checked, printed and compared when a run is resumed."""
