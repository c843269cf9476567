"""Queasy: a job queue on Redis and Valkey that loses nothing and runs nothing twice at once."""

from queasy.client import Client
from queasy.codec import Codec, JsonCodec, RawCodec
from queasy.dispatch import Dispatch
from queasy.errors import (
    AccessDenied,
    EmbeddedServerError,
    InvalidId,
    InvalidInput,
    InvalidOption,
    InvalidPayload,
    InvalidQueue,
    InvalidTime,
    InvalidUrl,
    LeaseLost,
    NotDurable,
    OutOfMemory,
    ProtocolError,
    QueasyError,
    ReadOnly,
    ServerError,
    Unanswered,
    UndecodablePayload,
    Unreachable,
    Unsupported,
)
from queasy.job import Job, JobError
from queasy.lease import Lease
from queasy.options import JobOptions
from queasy.queue import Queue
from queasy.store.records import ClientInfo, Counts, Dispatched, Stat
from queasy.sync import SyncClient, SyncLease, SyncQueue

__all__ = [
    "AccessDenied",
    "Client",
    "ClientInfo",
    "Codec",
    "Counts",
    "Dispatch",
    "Dispatched",
    "EmbeddedServerError",
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
    "NotDurable",
    "OutOfMemory",
    "ProtocolError",
    "QueasyError",
    "Queue",
    "RawCodec",
    "ReadOnly",
    "ServerError",
    "Stat",
    "SyncClient",
    "SyncLease",
    "SyncQueue",
    "Unanswered",
    "UndecodablePayload",
    "Unreachable",
    "Unsupported",
]
