"""What holds for all tests: how long an example takes to draw or to run is no property of the code."""

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("mappa", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mappa")

# A script that runs tests in its background leaves SIGINT ignored, which programs that tests start would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
