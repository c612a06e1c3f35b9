"""For authors of coaches: reports of coaches on themselves, fences around data of strangers, and what is scored."""

from mappa_core.coaching.categories import CATEGORIES as CATEGORIES
from mappa_core.coaching.data_fences import fence_lines as fence_lines
from mappa_core.coaching.data_fences import new_nonce as new_nonce
from mappa_core.coaching.data_fences import prefix_lines as prefix_lines
from mappa_core.coaching.data_fences import quote_name as quote_name
from mappa_core.protocols import Alarm as Alarm
from mappa_core.protocols import AlarmKind as AlarmKind
from mappa_core.protocols import Cassette as Cassette
from mappa_core.protocols import DriftReport as DriftReport
from mappa_core.protocols import Gap as Gap
from mappa_core.records import BLAME_BESIDE_AGENTS as BLAME_BESIDE_AGENTS
from mappa_core.records import ENVIRONMENT as ENVIRONMENT
from mappa_core.records import TASK as TASK
from mappa_core.records import USER as USER
from mappa_core.records import Interval as Interval
from mappa_core.records import Phase as Phase
from mappa_core.tools.error_texts import find_error_text as find_error_text
