"""New weights from learners to samplers: sent in buckets, verified, and only then sampled by."""
