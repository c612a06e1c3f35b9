"""What holds for all tests: how long an example takes to draw or to run is no property of the code."""

from hypothesis import HealthCheck, settings

settings.register_profile("mappa", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mappa")
