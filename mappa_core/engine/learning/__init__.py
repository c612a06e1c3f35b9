"""What every learner shares, whatever runs it: micro-batches, forward passes, corrections and optimiser steps."""
