"""Queasy: a job queue on Redis and Valkey.

On a healthy server, no accepted job is lost and no id is leased twice at once.
"""

from queasy.attributes import Redact, redact_secrets
from queasy.client import Client
from queasy.codec import Codec, CodecName, JsonCodec, RawCodec
from queasy.consumer.awaiting import Consumer
from queasy.consumer.leases import ConsumerLease, SyncConsumerLease
from queasy.consumer.threaded import SyncConsumer
from queasy.current import current_job
from queasy.dispatch import Dispatch, DispatchDefaults
from queasy.errors import (
    AccessDenied,
    CannotWork,
    ClientClosed,
    EmbeddedServerError,
    EvictionFailed,
    HandlerNotFound,
    InvalidId,
    InvalidInput,
    InvalidOption,
    InvalidPayload,
    InvalidQueue,
    InvalidTime,
    InvalidUrl,
    LeaseLost,
    NotDurable,
    NotReady,
    NotRunning,
    OutOfMemory,
    PredicateFailed,
    ProtocolError,
    QueasyError,
    QueueInUse,
    ReadOnly,
    ServerError,
    Unanswered,
    UndecodablePayload,
    Unreachable,
    Unsupported,
)
from queasy.handler import HandlerOptions, OnException
from queasy.job import Job, JobError, State
from queasy.lease import Lease, LeaseRequest, SyncLease
from queasy.options import (
    Budget,
    Durability,
    IfExists,
    JobOptions,
    Replicated,
    RunTimeout,
    Seconds,
    UpdateRunAt,
    When,
)
from queasy.outcomes import Failure, Interrupted, PermanentError, Retry
from queasy.queue import Queue
from queasy.store.health import Health, QueueHealth
from queasy.store.records import Cancellation, ClientInfo, Counts, Dispatched, MadeDue, Stat
from queasy.sync import SyncClient, SyncQueue
from queasy.version import VERSION
from queasy.worker.eviction import Evicted
from queasy.worker.roster import WorkerInfo

__all__ = [
    "AccessDenied",
    "Budget",
    "Cancellation",
    "CannotWork",
    "Client",
    "ClientClosed",
    "ClientInfo",
    "Codec",
    "CodecName",
    "Consumer",
    "ConsumerLease",
    "Counts",
    "Dispatch",
    "DispatchDefaults",
    "Dispatched",
    "Durability",
    "EmbeddedServerError",
    "Evicted",
    "EvictionFailed",
    "Failure",
    "HandlerNotFound",
    "HandlerOptions",
    "Health",
    "IfExists",
    "Interrupted",
    "InvalidId",
    "InvalidInput",
    "InvalidOption",
    "InvalidPayload",
    "InvalidQueue",
    "InvalidTime",
    "InvalidUrl",
    "Job",
    "JobError",
    "JobOptions",
    "JsonCodec",
    "Lease",
    "LeaseLost",
    "LeaseRequest",
    "MadeDue",
    "NotDurable",
    "NotReady",
    "NotRunning",
    "OnException",
    "OutOfMemory",
    "PermanentError",
    "PredicateFailed",
    "ProtocolError",
    "QueasyError",
    "Queue",
    "QueueHealth",
    "QueueInUse",
    "RawCodec",
    "ReadOnly",
    "Redact",
    "Replicated",
    "Retry",
    "RunTimeout",
    "Seconds",
    "ServerError",
    "Stat",
    "State",
    "SyncClient",
    "SyncConsumer",
    "SyncConsumerLease",
    "SyncLease",
    "SyncQueue",
    "Unanswered",
    "UndecodablePayload",
    "Unreachable",
    "Unsupported",
    "UpdateRunAt",
    "When",
    "WorkerInfo",
    "current_job",
    "redact_secrets",
]

__version__ = VERSION
