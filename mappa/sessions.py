"""For what plays teams outside a training: configs composed or restored, sessions of their objects, rollouts."""

from mappa.config.compose import ComposedConfig as ComposedConfig
from mappa.config.compose import build_options as build_options
from mappa.config.compose import compose as compose
from mappa.config.resume_diff import diff_configs as diff_configs
from mappa.config.yaml_io import format_scalar as format_scalar
from mappa.config.yaml_io import format_yaml as format_yaml
from mappa.config.yaml_io import parse_overrides as parse_overrides
from mappa.evaluation.standalone import evaluate_standalone as evaluate_standalone
from mappa.rollout.collector import RolloutCollector as RolloutCollector
from mappa.rollout.replay import Replay as Replay
from mappa.rollout.team import Job as Job
from mappa.session.builder import Session as Session
from mappa.session.builder import open_session as open_session
from mappa.session.policies import assign_policies as assign_policies
from mappa.session.policies import trained_policies as trained_policies
from mappa.session.runtime import attach_coaches as attach_coaches
from mappa.session.runtime import open_batches as open_batches
from mappa.session.runtime import record_prompts as record_prompts
from mappa.session.runtime import record_session_events as record_session_events
from mappa.session.trust import require_trusted as require_trusted
from mappa.session.trust import restore_resumed as restore_resumed
from mappa.session.trust import restore_trusted as restore_trusted
from mappa.store.marks import write_mark as write_mark
from mappa_core.calls.spend_ledger import Ledger as Ledger
from mappa_core.config.layers import with_origin as with_origin
from mappa_core.config.schema import RunConfig as RunConfig
