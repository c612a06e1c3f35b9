"""Exact test, by enumeration, that the gradient of an advantage estimator is the policy gradient.

A *decision process* here is a team whose policies are tables with known probabilities. It is so small that only a few
hundred batches can be sampled, so the expected gradient of an estimator is a finite sum.
"""
