"""Weight synchronisation from learners to samplers: weights are sent, verified, and only then used for sampling."""
