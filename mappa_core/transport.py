"""For authors of providers' transports: requests, replies and faults, and what transports have in common."""

from mappa_core.calls.bounded_reply import UNCOMPRESSED as UNCOMPRESSED
from mappa_core.calls.bounded_reply import bound_response as bound_response
from mappa_core.calls.bounded_reply import bounded_hooks as bounded_hooks
from mappa_core.calls.bounded_reply import reply_bytes as reply_bytes
from mappa_core.calls.client import BatchTransport as BatchTransport
from mappa_core.calls.errors import ErrorBody as ErrorBody
from mappa_core.calls.errors import ErrorParser as ErrorParser
from mappa_core.calls.errors import fault_from_status as fault_from_status
from mappa_core.calls.errors import one_line as one_line
from mappa_core.calls.errors import retry_after as retry_after
from mappa_core.calls.parse import StopReason as StopReason
from mappa_core.calls.parse import decode_answer as decode_answer
from mappa_core.calls.parse import join_details as join_details
from mappa_core.calls.parse import map_stop_reason as map_stop_reason
from mappa_core.calls.parse import parse_usage as parse_usage
from mappa_core.calls.sdk_transport import LoopBound as LoopBound
from mappa_core.calls.sdk_transport import SdkTransport as SdkTransport
from mappa_core.calls.sdk_transport import check_base_url as check_base_url
from mappa_core.calls.sdk_transport import hidden_environment as hidden_environment
from mappa_core.calls.secret import Secret as Secret
from mappa_core.errors import CallError as CallError
from mappa_core.errors import CallFault as CallFault
from mappa_core.protocols import Provider as Provider
from mappa_core.protocols import Reply as Reply
from mappa_core.protocols import Request as Request
from mappa_core.protocols import Transport as Transport
