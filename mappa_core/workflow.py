"""What authors of workflows import: prompts, rubrics and recipes that are files of their package."""

from mappa_core.coaching.rubrics import BlindRole as BlindRole
from mappa_core.tools.prompt_templates import Contribution as Contribution
from mappa_core.tools.prompt_templates import PromptTemplates as PromptTemplates
from mappa_core.tools.prompt_templates import find_recipes as find_recipes
from mappa_core.tools.prompt_templates import read_rubric as read_rubric
