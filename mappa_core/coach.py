"""For authors of coaches: reports of coaches on themselves, fences around data of strangers, and what is scored."""

from mappa_core.coaching.data_fences import fence_lines as fence_lines
from mappa_core.coaching.data_fences import new_nonce as new_nonce
from mappa_core.coaching.data_fences import prefix_lines as prefix_lines
from mappa_core.coaching.data_fences import quote_name as quote_name
from mappa_core.protocols import Alarm as Alarm
from mappa_core.protocols import AlarmKind as AlarmKind
from mappa_core.protocols import Cassette as Cassette
from mappa_core.protocols import DriftReport as DriftReport
from mappa_core.protocols import Gap as Gap
from mappa_core.records import Interval as Interval
from mappa_core.records import Phase as Phase
