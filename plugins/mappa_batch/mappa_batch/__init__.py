"""Gathers calls into batches of their provider: submitted together, waited for, and taken up again after a kill."""

from mappa_batch.batching import BatchingTransport as BatchingTransport
from mappa_batch.batching import gather_calls as gather_calls
from mappa_batch.options import BatchOptions as BatchOptions
from mappa_batch.wire import BatchState as BatchState
from mappa_batch.wire import BatchWire as BatchWire
from mappa_batch.wire import Outcome as Outcome
from mappa_batch.wire import outcome_of as outcome_of
from mappa_batch.wire import results_bytes as results_bytes
