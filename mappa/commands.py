"""What authors of commands import: the arguments that choose a config, the plugins, and how results are printed.

A command of a package is an entry point of the group `mappa.commands` that names a click command.
"""

from mappa.cli.announce import announce_providers as announce_providers
from mappa.cli.common_options import json_option as json_option
from mappa.cli.common_options import quiet_option as quiet_option
from mappa.cli.console import Console as Console
from mappa.cli.console import Name as Name
from mappa.cli.console import echo as echo
from mappa.cli.console import escape as escape
from mappa.cli.options import ConfigArguments as ConfigArguments
from mappa.cli.options import file_option as file_option
from mappa.cli.options import load_registry as load_registry
from mappa.cli.options import recipe_options as recipe_options
from mappa.cli.options import trust_option as trust_option
from mappa.cli.progress import RunProgress as RunProgress
from mappa.cli.progress import rollout_bar as rollout_bar
from mappa.cli.result_tables import show_evaluation as show_evaluation
from mappa.cli.tables import columns_table as columns_table
from mappa.cli.trajectory import show_trajectory as show_trajectory
from mappa_core.plugins import did_you_mean as did_you_mean
