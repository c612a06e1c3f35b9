"""Whether an estimator's gradient is the policy gradient: exactly, by enumeration, not by sampling.

A *decision process* here is a team whose policies are tables and whose every probability is known. It is so small that
all batches that can be sampled are few hundred, so the expectation of what an estimator gives is a finite sum.
"""
