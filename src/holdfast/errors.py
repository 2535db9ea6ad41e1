"""Every error a caller can meet: one base class, one stable `code` each, a sentence that says what to do.

    HoldfastError
    ├── Conflict         someone else was first, or the same key was used for something else
    ├── LeaseLost        the caller no longer holds its claim
    ├── NotFound         no such run, revision or session for this caller
    ├── Gone             there was one, and it was deleted or is too old to be kept
    ├── Unauthorized     nobody knows who is calling
    ├── RunFailed        a run that someone waits for did not end well
    │   └── RunCancelled
    ├── ToolFailed       a tool failed, or nobody can tell whether it ran
    ├── InvalidEntry     the journal holds, or was offered, an entry that cannot be read
    ├── InvalidValue     a value or an id that cannot be stored
    ├── StorageError     a scoped-storage call broke its rules
    ├── DeliveryFailed   a sink could not deliver; it is tried again
    ├── DeadLetter       a sink will never be able to deliver; it is not tried again
    ├── AddressRefused   a request to a place that must not be reached
    ├── SealError        a secret cannot be sealed or opened
    ├── Misconfigured    the environment does not say what is needed, or says what must not be
    ├── HandshakeRefused an authorization that did not end as it began
    ├── ProviderError    an OAuth provider is away, or refused us
    │   └── ReauthRequired
    └── DatabaseError    the database is away, refuses us, or is not fit for use

Expected answers are return values; these are for broken assumptions. Driver errors never leave `store/`.
"""

from __future__ import annotations


class HoldfastError(Exception):
    """Base of all errors. `code` is stable and safe to branch on; the text is for people."""

    code = "holdfast_error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class Conflict(HoldfastError):
    """The write was refused because the world had moved on. Nothing was written; read again, then decide."""

    code = "conflict"


class LeaseLost(HoldfastError):
    """The caller no longer holds the claim. Stop, drop the result, do not retry."""

    code = "stale_claim"


class NotFound(HoldfastError):
    """There is no such thing, or it belongs to someone else. Check the id."""

    code = "not_found"


class Gone(HoldfastError):
    """There was such a thing, and there is no more: it was deleted, or kept long enough. Its id is never used again."""

    code = "gone"


class Unauthorized(HoldfastError):
    """Nobody knows who is calling. Say who you are, then ask again."""

    code = "unauthorized"


class RunFailed(HoldfastError):
    """The run that was waited for has failed, or was cancelled. `run` is how it ended."""

    code = "run_failed"

    def __init__(self, message: str, *, run: object = None, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.run = run


class RunCancelled(RunFailed):
    """The run that was waited for was cancelled."""

    code = "run_cancelled"


class ToolFailed(HoldfastError):
    """A tool may or may not have run, and its policy, or a person, decided that it counts as failed."""

    code = "tool_failed"


class InvalidEntry(HoldfastError):
    """A journal entry is corrupt, unknown or out of sequence. The thread is not read past it."""

    code = "invalid_entry"

    def __init__(
        self, message: str, *, code: str | None = None, thread: str = "", rev: int = 0, position: int = 0
    ) -> None:
        super().__init__(message, code=code)
        self.thread = thread
        self.rev = rev
        self.position = position


class InvalidValue(HoldfastError, ValueError):
    """A value or id that can never be stored. Nothing was written; correct it and call again."""

    code = "invalid_value"


class StorageError(HoldfastError):
    """A scoped-storage call broke a rule of its tick."""

    code = "storage_error"


class DeliveryFailed(HoldfastError):
    """Raised by a sink: try again, after `retry_after` seconds if that is said. `status` is what the receiver said."""

    code = "delivery_failed"

    def __init__(
        self, message: str, *, status: int | None = None, retry_after: float | None = None, code: str | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.retry_after = retry_after


class DeadLetter(HoldfastError):
    """Raised by a sink: this can never be delivered. The row is dead until somebody requeues it."""

    code = "dead_letter"


class AddressRefused(HoldfastError):
    """The place is not public and was not allowed by name. Nothing was sent."""

    code = "address_refused"


class SealError(HoldfastError):
    """A secret cannot be sealed or opened. It is never kept, nor answered, in clear instead."""

    code = "seal_broken"


class Misconfigured(HoldfastError):
    """The environment lacks a setting, or has one that must not be. The text names it."""

    code = "misconfigured"


class HandshakeRefused(HoldfastError):
    """An authorization came back that nobody here began, or that was used, or too late. Start again."""

    code = "invalid_state"


class ProviderError(HoldfastError):
    """The provider did not do what was asked. Nothing was changed here."""

    code = "provider_error"


class ReauthRequired(ProviderError):
    """The provider no longer honours what it granted. Only the user can grant it anew."""

    code = "reauth_required"


class DatabaseError(HoldfastError):
    """The database is away or refused the work. Committed work is safe; try again when it is back."""

    code = "database_unavailable"
