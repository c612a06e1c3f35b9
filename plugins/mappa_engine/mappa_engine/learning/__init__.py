"""The learning algorithm of all learners: micro-batches, forward passes, off-policy correction, optimiser steps."""
