"""What authors of commands import: the arguments that choose a config, the plugins, and how results are printed.

A command of a package is an entry point of the group `mappa.commands` that names a click command.
"""

from mappa_core.calls.options import Price as Price
from mappa_core.calls.spend_ledger import Ledger as Ledger
from mappa_core.cli.announce import announce_providers as announce_providers
from mappa_core.cli.announce import announce_sandboxes as announce_sandboxes
from mappa_core.cli.main import blocked_plugins as blocked_plugins
from mappa_core.cli.options import ConfigArguments as ConfigArguments
from mappa_core.cli.options import load_registry as load_registry
from mappa_core.cli.options import recipe_options as recipe_options
from mappa_core.cli.progress import format_or_dash as format_or_dash
from mappa_core.cli.progress import format_percent as format_percent
from mappa_core.cli.progress import format_problem_count as format_problem_count
from mappa_core.cli.progress import format_share as format_share
from mappa_core.cli.progress import rollout_bar as rollout_bar
from mappa_core.cli.result_tables import evaluation_json as evaluation_json
from mappa_core.cli.result_tables import gains_table as gains_table
from mappa_core.cli.result_tables import selection_sentence as selection_sentence
from mappa_core.cli.result_tables import show_evaluation as show_evaluation
from mappa_core.cli.result_tables import show_warnings as show_warnings
from mappa_core.cli.runs import show_trajectory as show_trajectory
from mappa_core.coaching.options import LLMCoachOptions as LLMCoachOptions
from mappa_core.coaching.prompt import PromptBuilder as PromptBuilder
from mappa_core.coaching.token_budget import estimate_tokens as estimate_tokens
from mappa_core.config.compose import ComposedConfig as ComposedConfig
from mappa_core.config.compose import build_options as build_options
from mappa_core.config.compose import compose as compose
from mappa_core.config.compose import restore as restore
from mappa_core.config.layers import with_origin as with_origin
from mappa_core.config.resume_diff import diff_configs as diff_configs
from mappa_core.config.schema import CoachSection as CoachSection
from mappa_core.config.schema import PolicySection as PolicySection
from mappa_core.config.schema import RunConfig as RunConfig
from mappa_core.config.yaml_io import format_scalar as format_scalar
from mappa_core.config.yaml_io import format_yaml as format_yaml
from mappa_core.config.yaml_io import parse_overrides as parse_overrides
from mappa_core.config.yaml_io import parse_yaml as parse_yaml
from mappa_core.evaluation.standalone import evaluate_standalone as evaluate_standalone
from mappa_core.plugins import Registry as Registry
from mappa_core.plugins import did_you_mean as did_you_mean
from mappa_core.rollout.counterfactual import max_actions_after as max_actions_after
from mappa_core.rollout.counterfactual import rollouts_per_action as rollouts_per_action
from mappa_core.rollout.team import NamedCoach as NamedCoach
from mappa_core.session.credit import build_estimator as build_estimator
from mappa_core.session.credit import build_experience_builder as build_experience_builder
from mappa_core.session.policies import assign_policies as assign_policies
from mappa_core.session.policies import build_policy_specs as build_policy_specs
from mappa_core.session.policies import trained_policies as trained_policies
from mappa_core.session.runtime import attach_cassette as attach_cassette
from mappa_core.session.stored_runs import StoredScenes as StoredScenes
from mappa_core.session.stored_runs import open_coach as open_coach
from mappa_core.session.stored_runs import open_stored_scenes as open_stored_scenes
from mappa_core.session.toolset import build_tools as build_tools
