"""A plugin that cannot be imported."""

import acme_that_was_never_installed  # noqa: F401
